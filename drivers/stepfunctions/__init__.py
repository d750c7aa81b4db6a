"""The Step Functions driver: a plan as a state machine, its executions, and what they end with."""
