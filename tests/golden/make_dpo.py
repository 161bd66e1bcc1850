"""Writes dpo/trl.json: the losses, reward margins and accuracies of TRL's DPOTrainer on dpo/pairs.jsonl in fp32, and
those of the same steps in fp64 with the formula written out.

usage: make_dpo.py   (needs trl)

dpo/ is a model folder: a tiny Llama with the byte tokenizer, trained for three steps on "hello world ..." by
`cleave train`, so that its logits are not flat.
"""

import itertools
import json
import os
import pathlib
import tempfile

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
import datasets
import torch
import transformers
import trl

# Names of cached results, which this script does not use; some objects of pyarrow cannot be pickled for them.
numbers = itertools.count()
datasets.fingerprint.Hasher.hash = classmethod(lambda cls, value: f"{next(numbers):016x}")
FOLDER = pathlib.Path(__file__).parent / "dpo"
BATCH, STEPS, LR, BETA = 2, 3, 3e-3, 0.5


class InFileOrder(trl.DPOTrainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def log_prob(model, prompt, answer):
    ids = torch.tensor([prompt + answer])
    log_probs = model(ids).logits.double().log_softmax(-1)[0, :-1]
    return log_probs.gather(-1, ids[0, 1:, None])[len(prompt) - 1 :].sum()


def steps_in_fp64(rows):
    """One sequence at a time, without padding."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # the rotary angles too
    policy = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64)
    reference = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    out = []
    for step in range(STEPS):
        margins = []
        for row in rows[step * BATCH : (step + 1) * BATCH]:
            prompt = list(row["prompt"].encode())
            rewards = []
            for key in ("chosen", "rejected"):
                answer = [*row[key].encode(), policy.config.eos_token_id]
                with torch.no_grad():
                    start = log_prob(reference, prompt, answer)
                rewards.append(BETA * (log_prob(policy, prompt, answer) - start))
            margins.append(rewards[0] - rewards[1])
        margin = torch.stack(margins)
        loss = -torch.nn.functional.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append({"loss": loss.item(), "margin": margin.mean().item(), "accuracy": (margin > 0).double().mean().item()})
    torch.set_default_dtype(usual)
    return out


def main():
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in (FOLDER / "pairs.jsonl").read_text().splitlines()]
    with tempfile.TemporaryDirectory() as out:
        args = trl.DPOConfig(
            output_dir=out, use_cpu=True, bf16=False, fp16=False, beta=BETA, max_length=None, max_steps=STEPS,
            per_device_train_batch_size=BATCH, learning_rate=LR, lr_scheduler_type="constant", warmup_steps=0,
            optim="adamw_torch", adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, weight_decay=0.0,
            max_grad_norm=0.0, logging_steps=1, report_to=[], save_strategy="no", gradient_checkpointing=False,
            disable_tqdm=True)
        trainer = InFileOrder(
            model=transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32),
            args=args,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=transformers.AutoTokenizer.from_pretrained(FOLDER))
        first = next(iter(trainer.train_dataset))
        trainer.train()
    steps = [line for line in trainer.state.log_history if "loss" in line]
    answer = {
        "trl": trl.__version__, "beta": BETA, "lr": LR, "batch_size": BATCH,
        "first_prompt_ids": first["prompt_ids"], "first_chosen_ids": first["chosen_ids"],
        "steps": [{"loss": float(s["loss"]), "margin": float(s["rewards/margins"]),
                   "accuracy": float(s["rewards/accuracies"])} for s in steps],
        "steps_in_fp64": steps_in_fp64(rows),
    }
    (FOLDER / "trl.json").write_text(json.dumps(answer, indent=1) + "\n")
    print(answer)


main()
