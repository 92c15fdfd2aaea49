// The library without the program `longspan`, for tests: plans a run, prints its memory estimate,
// then trains twice in this process, with two learning rates. `once` trains one after the other and
// prints the events; `at-once` trains on two threads without a listener.
//
//   build/library_runs once|at-once config.yaml FOLDER RATE FOLDER RATE
#include <ATen/Parallel.h>

#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "longspan/account/memory_model.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/liveness/run_control.h"
#include "longspan/report/console.h"
#include "longspan/session/run_plan.h"
#include "longspan/text/print.h"
#include "longspan/train/run.h"

namespace {

using longspan::print_out;

/// The library asks for GPUs only where the configuration leaves a choice.
longspan::Machine this_machine() {
  return {.find_gpus = longspan::find_gpus, .num_threads = at::get_num_threads()};
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

longspan::RunResult train(const std::string& file, const std::string& folder,
                          const std::string& rate, longspan::EventSink* events) {
  const longspan::Config config =
      longspan::load_config(file, {"output_dir=" + folder, "learning_rate=" + rate});
  longspan::PlainRunControl control;  // nothing stops the run before its last step
  return longspan::run_training(config, longspan::plan_run(config, this_machine()), control,
                                {.meter = nullptr, .events = events, .make_source = {}});
}

void train_and_tell(const std::string& file, const std::string& folder, const std::string& rate) {
  longspan::Console console;
  const longspan::RunResult result = train(file, folder, rate, &console);
  print_out("{} steps with learning rate {}: mean loss {:.17g}, the model is in {}\n",
            result.progress.step, rate, result.loss, result.saved_in);
}

/// Throws the error of a run that failed.
void train_at_once(const std::vector<std::string>& words) {
  std::vector<std::exception_ptr> errors(2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < errors.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        train(words[1], words[2 + 2 * i], words[3 + 2 * i], nullptr);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() != 6 || (words[0] != "once" && words[0] != "at-once")) {
      throw longspan::UserError(
          "usage: library_runs once|at-once config.yaml FOLDER RATE FOLDER RATE");
    }
    if (words[0] == "at-once") {
      train_at_once(words);
      return 0;
    }
    show_plan(longspan::load_config(words[1], {"output_dir=" + words[2]}));
    train_and_tell(words[1], words[2], words[3]);
    train_and_tell(words[1], words[4], words[5]);
    return 0;
  } catch (const std::exception& error) {
    longspan::print_err("error: {}\n", error.what());
    return 1;
  }
}
