"""Networks by name, `timm:NAME` and `torchvision:NAME`, as the metadata of their weights describe them."""
