"""What starts the service: a daemon, a Lambda function, an instance."""
