"""What the commands do, wired together.

The one package of `pimono_sdpo` that imports its siblings, inside its functions.
"""
