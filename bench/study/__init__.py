"""What a researcher runs: simulators, published policies, recorded and generated loads."""
