"""`llamafactory-cli train config.yaml` with the step clock added to the callbacks that every
Trainer gets. Usage: llamafactory_worker.py events.jsonl config.yaml"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import transformers.trainer

from step_clock import step_clock


def main():
    events, config = sys.argv[1:]
    transformers.trainer.DEFAULT_CALLBACKS.append(step_clock(events))
    sys.argv = ["llamafactory-cli", "train", config]
    from llamafactory.cli import main as llamafactory_cli

    llamafactory_cli()


if __name__ == "__main__":
    main()
