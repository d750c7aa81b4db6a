"""Stores in S3 buckets, S3 Express directory buckets included."""
