#!/usr/bin/env python3
"""Trains a model folder on chats with TRL's SFTTrainer, and prints one line of JSON.

usage: trl_train.py --model FOLDER --data CHATS.jsonl --eval-data CHATS.jsonl [--dtype fp32|bf16] [--epochs N] ...

The chats are taken in their order, with the loss on the tokens of the assistant. A held-out loss is the mean over all
trained tokens of --eval-data. Needs torch, transformers and trl.
"""
import argparse
import itertools
import json
import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def parse_options():
    parser = argparse.ArgumentParser(description="trains on chats with TRL")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="JSONL rows with messages")
    parser.add_argument("--eval-data", required=True, help="the held-out ones")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="bf16 is autocast of fp32 weights")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--micro-batch-size", type=int, default=5)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def config_of(options, folder):
    import trl

    return trl.SFTConfig(
        output_dir=folder, use_cpu=True, bf16=options.dtype == "bf16", fp16=False, assistant_only_loss=True,
        max_length=options.seq_len, num_train_epochs=options.epochs,
        per_device_train_batch_size=options.micro_batch_size,
        gradient_accumulation_steps=options.batch_size // options.micro_batch_size,
        per_device_eval_batch_size=options.micro_batch_size, learning_rate=options.lr, lr_scheduler_type="linear",
        warmup_steps=options.warmup, optim="adamw_torch", adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8,
        weight_decay=options.weight_decay, max_grad_norm=1.0, train_sampling_strategy="sequential", logging_steps=1,
        report_to=[], save_strategy="no", gradient_checkpointing=False, disable_tqdm=True)


def held_out_loss(trainer, dtype):
    """The mean loss over the trained tokens, and their number."""
    import torch

    total, count = 0.0, 0
    trainer.model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        for batch in trainer.get_eval_dataloader():
            labels = batch.pop("labels")[:, 1:]
            logits = trainer.model(**batch, use_cache=False).logits[:, :-1].float()
            total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
            count += int((labels != -100).sum())
    return total / count, count


def same_rates(trainer):
    """The trainer with the rates of Cleave's linear schedule: its first step has the first rate of the warm-up, not 0."""
    import torch

    class SameRates(trainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            warmup, optimizer = self.args.warmup_steps, optimizer or self.optimizer

            def factor(step):
                left = (num_training_steps - step) / max(1, num_training_steps - warmup)
                return min((step + 1) / warmup, left) if step < warmup else left

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return self.lr_scheduler

    return SameRates


def make_trainer(options, folder):
    import datasets
    import torch
    import transformers
    import trl

    # Names of cached results, which this script does not use; some objects of pyarrow cannot be pickled for them.
    numbers = itertools.count()
    datasets.fingerprint.Hasher.hash = classmethod(lambda cls, value: f"{next(numbers):016x}")

    def rows_of(path):
        with open(path, encoding="utf-8") as file:
            return datasets.Dataset.from_list([json.loads(line) for line in file])

    return same_rates(trl.SFTTrainer)(
        model=transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        args=config_of(options, folder), train_dataset=rows_of(options.data), eval_dataset=rows_of(options.eval_data),
        processing_class=transformers.AutoTokenizer.from_pretrained(options.model))


def main():
    import torch
    import trl

    options = parse_options()
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(options, folder)
        start, tokens = held_out_loss(trainer, options.dtype)
        trainer.train()
        end, _ = held_out_loss(trainer, options.dtype)
    losses = [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
    print(json.dumps({"version": trl.__version__, "held_out_start": start, "held_out_end": end, "held_out_tokens": tokens,
                      "first_loss": losses[0], "steps": trainer.state.global_step}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
