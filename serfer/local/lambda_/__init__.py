"""The local Lambda service: AWS Lambda's Invoke API over processes of this machine."""
