// The library without the program `longspan`: plans a run, prints what it will take of memory, then
// trains twice in this process, with two learning rates.
//
//   cmake --build build --target example_library
//   build/example_library config.yaml FOLDER RATE FOLDER RATE
#include <ATen/Parallel.h>

#include <exception>
#include <string>
#include <vector>

#include "longspan/comm/cuda.h"
#include "longspan/config/config.h"
#include "longspan/config/user_error.h"
#include "longspan/liveness/host.h"
#include "longspan/plan/memory_model.h"
#include "longspan/text/print.h"
#include "longspan/train/run.h"
#include "longspan/train/run_plan.h"

namespace {

using longspan::print_out;

/// The library asks for GPUs only where the configuration leaves a choice.
longspan::Machine this_machine() {
  return {.look_for_gpus = longspan::look_for_gpus, .num_threads = at::get_num_threads()};
}

/// The plan and the account, before any data are read or any tensor is made.
void show_plan(const longspan::Config& config) {
  const longspan::RunPlan plan = longspan::plan_run(config, this_machine());
  const int64_t num_tokens =
      config.optimization.per_device_train_batch_size * config.data.cutoff_len;
  const longspan::RowLengths longest{.num_tokens = num_tokens, .num_labels = num_tokens};
  print_out("{} layers on {}, rows of at most {} tokens\n", plan.model.spec.num_layers,
            longspan::device_text(plan), num_tokens);
  print_out("{}\n", table_of(longspan::account_of_run(config, plan, longest)));
}

void train(const std::string& file, const std::string& folder, const std::string& rate) {
  const longspan::Config config =
      longspan::load_config(file, {"output_dir=" + folder, "learning_rate=" + rate});
  longspan::PlainHost host;  // nothing stops the run before its last step
  const longspan::RunResult result =
      longspan::run_training(config, longspan::plan_run(config, this_machine()), host);
  print_out("{} steps with learning rate {}: mean loss {:.17g}, the model is in {}\n",
            result.progress.step, rate, result.loss, result.saved_in);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() != 5) {
      throw longspan::UserError("usage: example_library config.yaml FOLDER RATE FOLDER RATE");
    }
    show_plan(longspan::load_config(words[0], {"output_dir=" + words[1]}));
    train(words[0], words[1], words[2]);
    train(words[0], words[3], words[4]);
    return 0;
  } catch (const std::exception& error) {
    longspan::print_err("error: {}\n", error.what());
    return 1;
  }
}
