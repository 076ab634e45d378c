//! Worked examples below each command's flags.

pub const TOP: &str = "\
Examples:
  dsv4 diff-layers                          what do fast kernels change, layer by layer?
  dsv4 inspect /models/DeepSeek-V4-Flash    what is this checkpoint, is it complete?
  dsv4 needle                               are planted facts recalled, how far; why not?
  dsv4 dump --out golden.safetensors        every intermediate tensor of an exact run
  dsv4 encode --messages chat.json --against sent.txt
                                            is the prompt right that the server sent?
  dsv4 kernels list                         every site, knob, preset and fault
  dsv4 ab                                   which toggle, alone or together, breaks a gate?
  dsv4 report RUN...                        what do several runs say together?
  dsv4 selftest                             would this tool see a fault if there were one?

The built-in model builtin:pico is used wherever no model is named.
Exit codes: 0 all well, 1 a difference was found, 2 wrong usage, 3 bad input, 4 device
unavailable, 5 nothing was compared, 70 a bug of ours, 130 interrupted.";

pub const INSPECT: &str = "\
Examples:
  dsv4 inspect                              the built-in model
  dsv4 inspect /models/DeepSeek-V4-Flash    a downloaded checkpoint
  dsv4 inspect MODEL --json | jq .verdict   for a script";

pub const DIFF_LAYERS: &str = "\
Examples:
  dsv4 diff-layers                                     all performance kernels, built-in model
  dsv4 diff-layers --kernels splitk-mma,mhc-bf16       two of them
  dsv4 diff-layers --kernels all,-mhc                  all but those of one site
  dsv4 diff-layers --kernels attn.splits=8@3@decode    one knob, one layer, decode steps only
  dsv4 diff-layers --model DIR --against dump.safetensors";

pub const NEEDLE: &str = "\
A haystack is a long text dense with facts. Prompts of every length, depth and question begin with
the same tokens, so a haystack is computed once for all of them. Answers are graded by teacher
forcing: exact where every token of the answer would have been chosen.
Exit code 1: a path is below --reliable somewhere, or its ranking is broken; the verdict says why.

Examples:
  dsv4 needle                                      golden at three widths of the index, up to 32k
  dsv4 needle --ctx 2k..32k --kernels hadamard_q_only
      a planted fault beside golden, on the same prompts
  dsv4 needle --ctx 512,2k --topk 4,16,native,all  recall against index_topk
  dsv4 needle --ctx 4k --phase-sweep               4096 to 4099: every place in an index entry
  dsv4 needle --haystack book.txt --needle 'the code is 47192.' --question 'the code is' --answer 47192
  dsv4 needle --shard 2/4 --out part2              a quarter of the haystacks; `dsv4 merge` joins";

pub const MERGE: &str = "\
Files are those of an unsharded run, byte for byte; only manifest.json tells when and where. Missing
shards, shards given twice and shards of different runs are refused by name.

Example:
  dsv4 needle --shard 1/2 --out a && dsv4 needle --shard 2/2 --out b
  dsv4 merge a b --out whole";

pub const DUMP: &str = "\
Taps are named like `layers.3.attn.out`; `layers.*` stands for every layer. Without --taps the
file holds every tap but `indexer.scores` (tokens x entries numbers a layer), which a glob that
matches it, such as '*', adds. `tokens` is always in the file: comparing needs it. Taps a layer
does not have, or that are still empty at this length, are left out. The file appears when it is
complete; an error or Ctrl-C leaves nothing behind.

Examples:
  dsv4 dump --out golden.safetensors
      every tap of golden for the built-in prompt of the built-in model
  dsv4 dump --prompt 'the velvet lynx' --kernels all --out fast.safetensors
      the same through the performance kernels
  dsv4 dump --model DIR --token-ids ids.json --taps 'layers.*.out,logits' --out x.safetensors
      residual streams and logits of a checkpoint for exact token ids
  dsv4 dump --decode-last 16 --from 2016 --out tail.safetensors
      16 decode steps, and only their rows";

pub const KERNELS: &str = "\
Examples:
  dsv4 kernels list                               everything, readable
  dsv4 kernels list --json | jq '.faults[].name'  for a script
  dsv4 kernels check                              each preset's operations alone

A kernel spec is a comma list, later words winning:
  splitk-mma,kv-fp8         presets (faults are named in the same way)
  all,-mhc                  every performance preset, but not what they do at site mhc
  attn.splits=8             one knob
  splitk-mma@3              in layer 3 only; also @0+2-5, @prefill, @decode
  none                      golden itself";

pub const KERNELS_CHECK: &str = "\
Every operation of a path runs alone on seeded data: with golden's knobs, with the path's, and
with the path's declared formats alone. The last is the floor; excess is error over floor.
Cases: random; f32_inputs (the same, but activations that bf16 does not hold: in all other cases
they are bf16 numbers, since that is what an engine hands its kernels; the difference is what
rounding them costs); offset (scores share a large offset); ties (equal scores at the cut);
outliers (a few channels 50 times larger); beyond_clamp; masked (empty slots, few entries);
empty_splits (fewer keys than splits); short (lengths around every edge). A preset may be known to
be suspect at an output: it says so with the reason. Exit code 1: one is suspect where it is not.

Examples:
  dsv4 kernels check                                  every preset, each by itself
  dsv4 kernels check --preset splitk-mma mhc-bf16     two of them
  dsv4 kernels check --kernels attn.sink=dropped      one knob; exit code 1 if it is suspect
  dsv4 kernels check --kernels none --sizes small     golden against itself: no bit differs";

pub const AB: &str = "\
The experiment is a TOML file: model, prompts, [[toggle]] name and kernels, [[gate]] where and
require. Golden, golden against itself (A/A), each toggle alone, all together and all but one
share one pass over the weights. Exit code 1 if a gate fails in any run.

Examples:
  dsv4 ab                                the built-in experiment on the built-in model
  dsv4 ab --print-config > dsv4.toml     a config to start from
  dsv4 ab --bisect                       the smallest set of toggles that breaks a gate
  dsv4 ab --judge dsv4-runs/ab-1a2b3c4d  a stored run under the gates of today's config";

pub const DOCTOR: &str = "\
Examples:
  dsv4 doctor                 is anything missing here?
  dsv4 doctor --json | jq .ok";

pub const COMPLETIONS: &str = "\
Examples:
  dsv4 completions bash > /etc/bash_completion.d/dsv4
  dsv4 completions zsh > ~/.zfunc/_dsv4
  dsv4 man --out ~/.local/share/man/man1        manual pages";

pub const REPORT: &str = "\
Examples:
  dsv4 ab --out ab; dsv4 selftest --out st; dsv4 inspect --out in
  dsv4 report ab st in --out report      report.md, report.json, plots/
  dsv4 report ab --json | jq .principal  for a script
  dsv4 report --print-template > my.md   a template to start from; --template my.md uses it";

pub const ENCODE: &str = "\
Examples:
  dsv4 encode --messages chat.json                       the official prompt, byte for byte
  dsv4 encode --messages chat.json --mode thinking --effort max --encoder preview
  dsv4 encode --messages chat.json --ids --model DIR     its token ids
  dsv4 encode --messages chat.json --against sent.txt    what was dropped, added or changed?
  dsv4 encode --messages chat.json --against-ids ids.json --model DIR
      the same on token ids, which alone show control tokens made of user text

Exit codes: 0 equal, 1 different, 3 unusable input, 5 nothing was sent.";

pub const SELFTEST: &str = "\
Examples:
  dsv4 selftest                          every fault at its first and last possible layer
  dsv4 selftest --fault sink             only faults of the attention sink
  dsv4 selftest --every-layer --out DIR  all layers; the table as Markdown and JSON";
