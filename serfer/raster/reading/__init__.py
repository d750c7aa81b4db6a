"""Images read by windows, a TIFF, PNG or JPEG in a file or in S3."""
