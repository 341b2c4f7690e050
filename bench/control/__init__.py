"""From a pod that is bound until its agent has been told what to do, with light nodes."""
