"""An agent that fixes bugs in a repository with four tools, its rollouts and its evaluation."""
