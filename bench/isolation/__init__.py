"""What a clone from a node that serves costs the engine there."""
