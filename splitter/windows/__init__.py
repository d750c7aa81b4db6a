"""Map plans: a network that looks at neighbourhoods, cut into windows of images that no function holds."""
