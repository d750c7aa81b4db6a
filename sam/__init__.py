"""What SAM deploys: templates, layers and least-privilege policies for a plan."""
