"""The stages over task suites: rollouts of an agent, and the steps and pairs made of them."""
