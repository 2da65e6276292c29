"""Judge a completion by what it does: each module has one `verify(completion, spec)`."""
