#!/usr/bin/env bash
# What to run first on a machine with a GPU: is Cleave correct there, and how fast is it? See usage below.
set -uo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")
here=$(dirname "$script")

usage() {
  cat <<'TEXT'
usage: tools/first_gpu.sh [--device cuda|cpu] [--minutes N] [--out FILE] [--list] [--only PARTS]

Checks Cleave on one GPU (more are used if present) in at most N minutes (default 10), prints a table and writes FILE
(default first-gpu.txt) with it and the output of every part: send that file back.

  --device cpu   the same parts in small sizes on the CPU, to test this script; parts that need a GPU are skipped
  --list         print the parts and their limits in seconds, and run nothing
  --only PARTS   run only these, with commas

Needs the program (build/cleave, or this folder from ./run pack-gpu) and python3 with torch, of the version that the
program was built with. Speed needs about 20 GB in $TMPDIR.
TEXT
}

fail() {
  printf 'first_gpu: %s\n' "$*" >&2
  exit 2
}

# Parts and their limits in seconds, in this order.
PARTS=(machine:20 doctor:40 first_step:90 unit_tests:60 verify:150 train:120 resume:40 generate:60 layouts:150 nccl:120 sanitizer:90
  speed_train:240 speed_decode:200)

# In a pack everything lies in one folder.
if [ -x "$here/bin/cleave" ]; then
  program=$here/bin/cleave unit_tests=$here/tests/mesh_test text=$here/LICENSE baseline=$here/plain_llama.py
else
  root=$(dirname "$here")
  program=$root/build/cleave unit_tests=$root/build/release/tests/mesh_test text=$root/LICENSE
  baseline=$root/bench/baselines/plain_llama.py
fi
python=${CLEAVE_PYTHON:-python3}

# A part that prints "note: ..." has that in the table; one that exits with 77 is skipped.
note() { printf 'note: %s\n' "$*"; }
skip() {
  note "$*"
  exit 77
}
on_gpu() { [ "$DEVICE" = cuda ]; }
run() {
  printf '+ %s\n' "$*" >&2
  "$@"
}

# train NAME FLAGS...: a small run in $WORK/NAME, the same for all that are compared.
train() {
  local name=$1
  shift
  rm -rf "${WORK:?}/$name"
  run "$program" train --data "$text" --out "$WORK/$name" --steps 20 --batch-size 4 --seq-len 32 --lr 1e-4 --quiet "$@"
}

# compare NAME NAME TOLERANCE: the losses of two runs. Prints the largest relative difference.
compare() {
  "$python" - "$WORK/$1/metrics.jsonl" "$WORK/$2/metrics.jsonl" "$3" <<'PYTHON'
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(path)] for path in sys.argv[1:3])
assert len(a) == len(b) > 0, f"{len(a)} and {len(b)} steps"
worst = max(abs(x - y) / abs(x) for x, y in zip(a, b))
print(f"losses differ by {worst:.1e} at most; allowed {sys.argv[3]}")
sys.exit(worst > float(sys.argv[3]))
PYTHON
}

part_machine() {
  uname -srm
  nproc
  if on_gpu; then
    nvidia-smi || return
    note "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1)"
  fi
  "$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__, torch.version.cuda)'
  if [ -e "$here/torch-version" ]; then
    "$python" -c 'import sys, torch; sys.exit(not torch.__version__.startswith(sys.argv[1] + "."))' \
      "$(cat "$here/torch-version")" || {
      note "this pack is for torch $(cat "$here/torch-version"), which $python does not have"
      return 1
    }
  fi
  local file missing
  for file in "$program" "$(dirname "$program")"/{,../lib/,release/}libcleave*.so; do
    [ ! -e "$file" ] || ! missing=$(ldd "$file" | grep 'not found') || printf '%s: %s\n' "$file" "$missing"
  done
}

part_doctor() {
  run "$program" doctor || return
  local found
  found=$("$program" doctor --json | "$python" -c 'import json, sys; print(json.load(sys.stdin)["cleave"]["CUDA"])')
  note "CUDA: ${found:0:60}"
  ! on_gpu || [[ $found == [1-9]* ]]
}

# The other parts would only wait if this one does not end: it is the last one then.
part_first_step() {
  train first --model llama-tiny --dtype fp32 --device "$DEVICE" --steps 2 || return
  train second --model llama-tiny --dtype fp32 --device "$DEVICE" --steps 2 || return
  note "2 steps, twice"
}

part_unit_tests() {
  [ -x "$unit_tests" ] || skip "$unit_tests is not there"
  run "$unit_tests" --gtest_filter='Cuda*:NcclGroup*:*staged*'
}

part_verify() {
  local model dtype bad=0
  for model in llama-tiny gpt2-tiny bert-tiny; do
    for dtype in fp64 fp32 bf16; do
      run "$program" verify --model "$model" --tp 1 --dtype "$dtype" --device "$DEVICE" --quiet || bad=$((bad + 1))
    done
  done
  note "9 models and types, $bad failed"
  [ "$bad" = 0 ]
}

part_train() {
  local model dtype bound bad=0
  for model in llama-tiny gpt2-tiny; do
    for dtype in fp32 bf16; do
      # Rounding: 20 steps of fp32 with other orders of sums; bf16 has 8 bits, and the first loss is about 5.5.
      [ $dtype = fp32 ] && bound=1e-4 || bound=2e-2
      train "$model-$dtype-cpu" --model $model --dtype $dtype --device cpu || return
      train "$model-$dtype" --model $model --dtype $dtype --device "$DEVICE" || return
      compare "$model-$dtype-cpu" "$model-$dtype" $bound || bad=$((bad + 1))
    done
  done
  train again --model llama-tiny --dtype bf16 --device "$DEVICE" || return
  if compare llama-tiny-bf16 again 0; then
    note "$bad of 4 differ from the CPU; bf16 repeats bit for bit"
  else
    note "$bad of 4 differ from the CPU; bf16 does not repeat bit for bit"
  fi
  [ "$bad" = 0 ]
}

part_resume() {
  # A run of the device continues on the CPU.
  run "$program" train --data "$text" --out "$WORK/llama-tiny-fp32" --steps 24 --batch-size 4 --seq-len 32 --lr 1e-4 \
    --quiet --model llama-tiny --dtype fp32 --device cpu --resume || return
  note "$(wc -l <"$WORK/llama-tiny-fp32/metrics.jsonl") steps"
}

# generate_texts NAME FLAGS...: a greedy text and three sampled ones in $WORK/text-NAME, the same for all that are compared.
generate_texts() {
  local name=$1 how
  shift
  for how in "" "--do-sample --temperature 1.2" "--do-sample --top-k 0 --top-p 0.8" "--do-sample --top-k 0"; do
    # shellcheck disable=SC2086  # a list of words
    run "$program" generate --model "$WORK/llama-tiny-fp32-cpu" --prompt "Permission is" --max-new-tokens 40 --no-stream --quiet \
      $how "$@" || return
  done >"$WORK/text-$name"
}

part_generate() {
  generate_texts cpu --device cpu && generate_texts gpu --device "$DEVICE" || return
  diff "$WORK/text-cpu" "$WORK/text-gpu" >&2 || return
  note "the texts of the CPU"
}

part_layouts() {
  export CLEAVE_SHARE_GPU=1  # one GPU is enough
  local layout bad=0 count=0
  for layout in "--tp 2" "--tp 2 --sequence-parallel" "--pp 2" "--dp 2" "--dp 2 --zero 1" "--dp 2 --fsdp" "--tp 2 --dp 2 --fsdp"; do
    count=$((count + 1))
    # shellcheck disable=SC2086  # a list of words
    train layout --model llama-tiny --dtype fp32 --device "$DEVICE" $layout && compare llama-tiny-fp32-cpu layout 1e-4 ||
      bad=$((bad + 1))
  done
  note "$count layouts on a shared GPU, $bad failed"
  [ "$bad" = 0 ]
}

part_nccl() {
  on_gpu || skip "needs GPUs"
  local gpus layout bad=0
  gpus=$(nvidia-smi -L | wc -l)
  [ "$gpus" -ge 1 ] || skip "nvidia-smi lists no GPU"
  [ "$gpus" -ge 2 ] || export CLEAVE_SHARE_GPU=nccl  # two ranks on one GPU
  for layout in "--tp 2" "--dp 2" "--dp 2 --fsdp" "--pp 2 --micro-batch-size 1"; do
    # shellcheck disable=SC2086  # a list of words
    train nccl --model llama-tiny --dtype fp32 --device cuda $layout && compare llama-tiny-fp32-cpu nccl 1e-4 || bad=$((bad + 1))
  done
  generate_texts nccl --device cuda --tp 2 && diff "$WORK/text-cpu" "$WORK/text-nccl" >&2 || bad=$((bad + 1))
  note "4 layouts and a text over NCCL on $gpus GPU(s), $bad failed"
  [ "$bad" = 0 ]
}

part_sanitizer() {
  on_gpu || skip "needs a GPU"
  command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not installed"
  run compute-sanitizer --error-exitcode 9 "$program" train --data "$text" --out "$WORK/sanitized" --steps 2 --batch-size 2 \
    --seq-len 32 --model llama-tiny --dtype bf16 --device cuda --quiet || return
  note "no errors in 2 steps"
}

# The model that is timed, its data, and the sizes of a step.
speed_sizes() {
  if on_gpu; then
    width=2048 inner=5632 layers=22 heads=32 kv_heads=4 vocabulary=32000 batch=8 tokens=2048 steps=12 new_tokens=256
  else
    width=64 inner=128 layers=2 heads=4 kv_heads=2 vocabulary=300 batch=2 tokens=64 steps=6 new_tokens=16
  fi
  config=$WORK/timed.json
  printf '{"model_type": "llama", "vocab_size": %d, "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
 "num_attention_heads": %d, "num_key_value_heads": %d, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
 "rope_theta": 10000, "tie_word_embeddings": false}\n' $vocabulary $width $inner $layers $heads $kv_heads >"$config"
  # Random numbers: a GPU is faster on constant data.
  [ -e "$WORK/timed.txt" ] || "$python" -c '
import random
random.seed(1)
print(" ".join(str(random.getrandbits(64)) for _ in range(60000)))' >"$WORK/timed.txt"
}

# value NAME < a line of JSON
value() { "$python" -c 'import json, sys; print(round(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]], 1))' "$1"; }

baseline_speed() {
  run "$python" "$baseline" --config "$config" --device "$DEVICE" --batch-size "$batch" --seq-len "$tokens" \
    --new-tokens "$new_tokens" --steps $((steps - 4)) "$@" >"$WORK/baseline" 2>"$WORK/baseline.err"
  local status=$?
  cat "$WORK/baseline" >&2
  [ $status = 0 ] || tail -5 "$WORK/baseline.err" >&2
  if [ $status = 0 ]; then value tokens_per_s <"$WORK/baseline"; else echo failed; fi
}

part_speed_train() {
  speed_sizes
  run "$program" train --model "$config" --data "$WORK/timed.txt" --out "$WORK/timed" --dtype bf16 --device "$DEVICE" --steps $steps \
    --batch-size $batch --seq-len $tokens --lr 1e-4 --quiet --over-commit || return
  local own
  own=$("$python" -c '
import json, statistics, sys
print(round(statistics.median(json.loads(line)["tokens_per_s"] for line in list(open(sys.argv[1]))[4:]), 1))' \
    "$WORK/timed/metrics.jsonl")
  note "tokens/s: Cleave $own"
  local eager compiled
  eager=$(baseline_speed --work train)
  note "tokens/s: Cleave $own, PyTorch $eager"
  compiled=$(baseline_speed --work train --compile)
  note "tokens/s: Cleave $own, PyTorch $eager, compiled $compiled"
}

part_speed_decode() {
  speed_sizes
  [ -d "$WORK/timed" ] || skip "part speed_train did not make the model"
  local own eager compiled
  for _ in 1 2 3; do
    run "$program" generate --model "$WORK/timed" --prompt 1 --max-new-tokens $new_tokens --dtype bf16 --device "$DEVICE" --json \
      --quiet || return
  done >"$WORK/decoded"
  # Without the first token, whose time is that of the libraries' start: PyTorch is timed when it is warm.
  own=$("$python" -c '
import json, statistics, sys
runs = [json.loads(line) for line in sys.stdin]
counts = [len(run["sequences"][0]["ids"]) for run in runs]
rates = [(n - 1) / (n / run["tokens_per_s"] - run["first_token_s"]) for n, run in zip(counts, runs)]
print(rates, file=sys.stderr)
print(round(statistics.median(rates), 1))' <"$WORK/decoded")
  note "tokens/s: Cleave $own"
  eager=$(baseline_speed --work decode)
  compiled=$(baseline_speed --work decode --compile)
  note "tokens/s: Cleave $own, PyTorch $eager, compiled $compiled"
}

device=cuda minutes=10 out=first-gpu.txt only=
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2-} && shift ;;
    --minutes) minutes=${2-} && shift ;;
    --out) out=${2-} && shift ;;
    --only) only=${2-} && shift ;;
    --list)
      for part in "${PARTS[@]}"; do printf '%-14s %4s s\n' "${part%%:*}" "${part#*:}"; done
      exit
      ;;
    --part)  # inside the script: timeout can only end a program
      "part_$2"
      exit
      ;;
    -h | --help)
      usage
      exit
      ;;
    *)
      usage >&2
      fail "unknown flag '$1'"
      ;;
  esac
  shift
done
case $device in cuda | cpu) ;; *) fail "--device '$device'; expected cuda or cpu" ;; esac
case $minutes in '' | *[!0-9]*) fail "--minutes '$minutes'; expected a whole number" ;; esac
[ -x "$program" ] || fail "$program is not there; run ./run build first"
: >"$out" || fail "$out cannot be written"

WORK=$(mktemp -d) || exit 2
export WORK DEVICE=$device
# libtorch's folder of Python's packages, for a program that was built elsewhere.
packages=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' 2>/dev/null || true)
if [ -x "$here/bin/cleave" ] && [ -n "$packages" ]; then
  LD_LIBRARY_PATH=$packages/torch/lib$(printf ':%s' "$packages"/nvidia/*/lib)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
fi

table=() num_failed=0
write_report() {
  {
    printf '%s\n' "Cleave on a GPU for the first time: $(date -u +%Y-%m-%dT%H:%MZ), --device $device, $SECONDS s" "${table[@]}" ""
    [ ! -e "$WORK/log" ] || cat "$WORK/log"
  } >"$out"
}
trap 'write_report; rm -rf "$WORK"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for part in "${PARTS[@]}"; do
  name=${part%%:*} limit=${part#*:} status=0 left=$((minutes * 60 - SECONDS)) began=$SECONDS
  case ,$only, in ,, | *,$name,*) ;; *) continue ;; esac
  if [ "$left" -lt 10 ]; then
    row=$(printf '%-14s %-8s %4d s  %s' "$name" skipped 0 "no time left")
    table+=("$row")
    printf '%s\n' "$row"
    num_failed=$((num_failed + 1))
    continue
  fi
  timeout --kill-after 5 $((limit < left ? limit : left)) bash "$script" --part "$name" >"$WORK/output" 2>&1 </dev/null || status=$?
  case $status in 0) result=passed ;; 77) result=skipped ;; 124 | 137) result="too slow" ;; *) result=FAILED ;; esac
  case $status in 0 | 77) ;; *) num_failed=$((num_failed + 1)) ;; esac
  row=$(printf '%-14s %-8s %4d s  %s' "$name" "$result" $((SECONDS - began)) "$(sed -n 's/^note: //p' "$WORK/output" | tail -1)")
  table+=("$row")
  printf '%s\n' "$row"
  { printf '\n== %s: %s (%s)\n' "$name" "$result" "$status" && cat "$WORK/output"; } >>"$WORK/log"
  [ "$name" != first_step ] || [ "$status" = 0 ] || break
done
printf '%s\n' "$num_failed parts failed or had no time; report: $out"
[ "$num_failed" = 0 ]
