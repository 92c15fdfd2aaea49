// Trains like `longspan train`, one run after another in this process, each with threads as ranks.
// Reads one request per line from stdin, and answers each with a line on stdout:
//
//   {"config": "run.yaml", "ranks": 3, "port": 20000, "log": "run.log", "stream": false}
//   {"status": 0}
//
// A stream gives the rows of the data set's epochs without a known length. The output of the run
// goes to `log`. Status 1: a UserError, 2: anything else, like the program.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/process/resources.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/data/example_source.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/run_control.h"
#include "longspan/report/console.h"
#include "longspan/session/run_plan.h"
#include "longspan/testing/thread_groups.h"
#include "longspan/text/print.h"
#include "longspan/train/run.h"

namespace {

using nlohmann::json;

class EndingRunControl final : public longspan::RunControl {
 public:
  void stopped_early(const std::string& /*why*/) override { _exit(0); }
  void lost_others(const std::string& message) override {
    longspan::print_err("error: {}\n", message);
    _exit(1);
  }
};

/// A source whose position is known only from its own state.
class Stream final : public longspan::ExampleSource {
 public:
  explicit Stream(longspan::Epochs epochs) : epochs_(std::move(epochs)) {}
  std::optional<int64_t> num_batches() const override { return std::nullopt; }
  longspan::DrawnExamples next(int64_t /*epoch*/, int64_t /*batch*/) override {
    const int64_t an_epoch = *epochs_.num_batches(), number = num_drawn_++;
    return epochs_.next(number / an_epoch, number % an_epoch);
  }
  std::string state() const override { return std::to_string(num_drawn_); }
  void resume(const std::string& state) override { num_drawn_ = std::stoll(state); }

 private:
  longspan::Epochs epochs_;
  int64_t num_drawn_ = 0;
};

longspan::RunParts with_stream(const longspan::Config& config) {
  return {.meter = nullptr,
          .events = nullptr,
          .make_source = [&config](const longspan::ExampleSet& train, const longspan::Mesh& mesh) {
            const longspan::Loader loader(
                train.size(), config.optimization.per_device_train_batch_size, mesh.data.rank(),
                mesh.data.size(), !config.method.disable_shuffling, config.optimization.seed);
            return std::make_unique<Stream>(longspan::Epochs(train, loader));
          }};
}

int train(const std::string& config_file, const longspan::Rendezvous& where, bool stream) {
  try {
    const longspan::Config config = longspan::load_config(config_file, {});
    const longspan::Machine machine{.find_gpus = longspan::find_gpus,
                                    .num_threads = at::get_num_threads()};
    const longspan::RunPlan plan = longspan::plan_run(config, machine, where);
    if (plan.device.cuda()) {
      longspan::use_gpu(plan.own_gpu(), {.deterministic = config.model.full_determinism,
                                         .tf32 = config.model.tf32});
    }
    EndingRunControl control;
    longspan::Console console(!config.output.disable_tqdm);
    longspan::RunParts parts = stream ? with_stream(config) : longspan::RunParts{};
    parts.events = &console;
    longspan::run_training(config, plan, control, parts);
    return 0;
  } catch (const longspan::FailedElsewhere&) {
    return 1;  // another rank has printed why
  } catch (const longspan::UserError& error) {
    longspan::print_err("error: {}\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    longspan::print_err("internal error: {}\n", error.what());
    return 2;
  }
}

/// Returns the highest status of the run's ranks.
int train_on_threads(const json& request) {
  const int num_ranks = request.at("ranks");
  std::vector<int> statuses(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = train(request.at("config"),
                             {.rank = rank,
                              .world_size = num_ranks,
                              .local_rank = rank,
                              .local_world_size = num_ranks,
                              .master_port = request.at("port"),
                              .interfaces = {},
                              .store_prefix = {},
                              .link = &longspan::testing::thread_link()},
                             request.at("stream"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::ranges::max_element(statuses);
}

/// For the lifetime of this object, stdout and stderr go to the file.
class Redirected {
 public:
  explicit Redirected(const std::string& file) {
    const int log = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(log);
  }
  ~Redirected() {
    std::fflush(nullptr);
    dup2(own_stdout_, STDOUT_FILENO);
    dup2(own_stderr_, STDERR_FILENO);
    close(own_stdout_);
    close(own_stderr_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  int own_stdout_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  int own_stderr_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
};

}  // namespace

int main() {
  longspan::bound_compiled_gemms();
  longspan::quiet_c10d();
  longspan::use_tensor_pool();
  std::string line;
  while (std::getline(std::cin, line)) {
    const json request = json::parse(line);
    int status = 2;
    {
      const Redirected redirected(request.at("log"));
      status = train_on_threads(request);
    }
    longspan::print_out("{}\n", json{{"status", status}}.dump());
    std::fflush(stdout);
  }
  _exit(0);
}
