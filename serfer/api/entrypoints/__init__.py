"""Entry points of the service: a daemon, a Lambda function, an instance."""
