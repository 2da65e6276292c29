"""What the SDPO training job does, in pieces. Needs the `train` extra; import the submodules."""
