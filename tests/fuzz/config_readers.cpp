// Readers of configurations: files, command lines, DeepSpeed's file.
#include "cli/generation_arguments.h"
#include "cli/options.h"
#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/config/overrides.h"
#include "longspan/cpu/capability.h"
#include "longspan/data/dataset.h"
#include "longspan/data/example_encoder.h"
#include "longspan/plan/step_plan.h"
#include "longspan/registers/stage.h"
#include "longspan/text/yaml.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

using fuzz::choose;
using fuzz::Folder;

constexpr std::string_view kWhole =
    "model_name_or_path: model\nstage: sft\ndo_train: true\ndataset: d\noutput_dir: out\n";

/// Computes the numbers of a run from an accepted configuration.
void count_steps(const Config& config) {
  const StepPlan plan =
      StepPlan::make(1000, config.optimization.gradient_accumulation_steps,
                     config.optimization.num_train_epochs, config.optimization.max_steps);
  fuzz::require(plan.total_steps > 0, "a configuration that is taken trains for some steps");
  for (const double given :
       {config.output.logging_steps, config.output.save_steps, config.optimization.warmup_steps,
        config.optimization.eval_steps.value_or(1)}) {
    fuzz::require(steps_of(given, plan.total_steps) >= 0, "a count of steps is not negative");
  }
  plan.place(plan.total_steps - 1);
}

FUZZ_READER(config) {
  const int way = choose(input, 4);
  const Folder folder;
  const std::string path = folder.write(way % 2 == 0 ? "run.yaml" : "run.json", input);
  if (way < 2) {
    count_steps(load_config(path, {}));
  } else {
    load_export_config(path, {});
  }
}

/// A configuration, and its numbers for a data set of some rows.
FUZZ_READER(run_rows) {
  const Folder folder;
  folder.write("dataset_info.json", R"({"d": {"file_name": "rows.jsonl"}})");
  std::string rows;
  for (int i = 0; i < 9; ++i) rows += "{\"instruction\": \"yes?\", \"output\": \"no, no\"}\n";
  folder.write("rows.jsonl", rows);
  const Config config = load_config(folder.write("run.yaml", input),
                                    {"dataset=d", "dataset_dir=" + folder.path(), "stage=sft"});
  count_steps(config);
  const Tokenizer& tokenizer = fuzz::small_tokenizer();
  const RunRows run = read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
  fuzz::require(!run.train.empty(), "some row is left to train on");
  fuzz::require(config.data.val_size == 0 || !run.eval.empty() || !config.data.eval_dataset.empty(),
                "val_size sets rows aside");
  encode_examples(
      {config.data, stage_of(config.method), tokenizer, local_time_now(), tokenizer.vocab_size()},
      run.train);
}

FUZZ_READER(overrides) {
  const Folder folder;
  const std::string path = folder.write("run.yaml", kWhole);
  count_steps(load_config(path, fuzz::lines(input)));
}

FUZZ_READER(deepspeed) {
  const Folder folder;
  const std::string file = folder.write("deepspeed.json", input);
  const std::string path = folder.write("run.yaml", kWhole);
  load_config(path, {"deepspeed=" + file});
}

FUZZ_READER(yaml) { yaml_to_json(input, "file.yaml"); }

FUZZ_READER(key_names) { explain_key(input); }

FUZZ_READER(options) {
  const Options options("init", fuzz::lines(input), {"output", "seed", "dtype"}, {"runs", "sizes"},
                        {"quiet"});
  options.text("output");
  options.list("runs");
  options.flag("quiet");
  options.whole_number("seed", 0);
  options.whole_numbers("sizes", 1);
}

FUZZ_READER(generation_arguments) {
  const bool writes_file = choose(input, 2) == 1;
  const GenerationArguments read =
      read_generation_arguments("generate", fuzz::lines(input), writes_file);
  fuzz::require(read.batch_size > 0, "a batch has some prompts");
}

FUZZ_READER(cpu_variable) {
  const std::string value(input);
  chosen_cpu_capability(value.c_str(), widest_cpu_capability());
}

}  // namespace
}  // namespace longspan
