"""What is measured on held-out rows, by method: its name in run.json and in words."""

MEASURES = {
    "sdpo": {"reward": "mean reward", "pass_rate": "pass rate"},
    "sft": {"loss": "loss per token", "token_accuracy": "token accuracy"},
    "dpo": {"log_ratio": "log-ratio", "preferred": "pairs with the chosen answer likelier"},
}
