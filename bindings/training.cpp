// Operators of whole runs, and of their plans.
#include <fmt/format.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bindings/python_config.h"
#include "bindings/python_events.h"
#include "bindings/registration.h"
#include "cli/process/cores.h"
#include "cli/process/launcher_environment.h"
#include "cli/process/node_environment.h"
#include "cli/process/run_config.h"
#include "longspan/account/memory_model.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"
#include "longspan/cuda/device_choice.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/train/run.h"

namespace longspan {
namespace {

using Words = std::vector<std::string>;

/// The control of a run, by which another thread of Python stops the run.
class ControlOfPython final : public torch::CustomClassHolder, public RunControl {
 public:
  /// The run finishes its step, saves and ends. `why`: a clause.
  void stop(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!told_to_stop_) why_ = why;
    told_to_stop_ = true;
  }
  /// The run abandons its step and ends.
  void abandon() { requested_ = true; }
  void listen(PythonSink& sink) { sink_ = &sink; }

  bool requested() const override { return requested_; }
  bool told_to_stop() const override { return told_to_stop_; }
  std::string why_stopped() const override {
    const std::lock_guard lock(mutex_);
    return told_to_stop_ ? why_ : RunControl::why_stopped();
  }
  bool launcher_gone() override {
    stop("the launcher has ended");
    return true;
  }
  void say(const std::string& how) override {
    if (sink_ != nullptr) sink_->take(Said{how});
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
  std::atomic<bool> requested_{false}, told_to_stop_{false};
  PythonSink* sink_ = nullptr;
};

using ControlPointer = c10::intrusive_ptr<ControlOfPython>;

ControlPointer control_new() { return c10::make_intrusive<ControlOfPython>(); }
void control_stop(const ControlPointer& control, const std::string& why) { control->stop(why); }
void control_abandon(const ControlPointer& control) { control->abandon(); }

const char* name_of_end(RunEnd end) {
  switch (end) {
    case RunEnd::kDone:
      return "done";
    case RunEnd::kInterrupted:
      return "interrupted";
    case RunEnd::kStopped:
      return "stopped";
  }
  return "";
}

/// Trains in this process. Returns the result as JSON.
std::string run_train(const ControlPointer& control, const std::string& file,
                      const Words& overrides, int64_t listener, int64_t port) {
  return for_python([&] {
    const Config config = load_run_config(file, overrides);
    const RunPlan plan = plan_here(config, rendezvous_at(port));
    PythonSink sink(listener);
    if (plan.where.rank == 0) control->listen(sink);
    PeakMeter meter(device_of(plan.device, plan.own_gpu()));
    const RunResult result =
        run_training(config, plan, *control, {.meter = &meter, .events = &sink, .make_source = {}});
    const nlohmann::json json{{"end", name_of_end(result.end)},
                              {"step", result.progress.step},
                              {"total_steps", result.progress.total_steps},
                              {"epoch", result.progress.epoch},
                              {"num_tokens", result.progress.num_tokens},
                              {"seconds", result.progress.elapsed_seconds},
                              {"loss", result.loss},
                              {"saved_in", result.saved_in}};
    return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  });
}

/// Returns the value of a variable that is a number of processes; nullopt if it is unset.
std::optional<int64_t> processes_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  const std::string_view text(value);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0) return number;
  throw UserError(fmt::format("environment variable {}={}: wanted is a whole number, at least 1",
                              variable, text));
}

bool is_launched() {
  if (starts_processes()) return false;
  return std::getenv("RANK") != nullptr || std::getenv("WORLD_SIZE") != nullptr ||
         rendezvous_from_environment().world_size > 1;
}

/// Returns the number of processes of a run: of the launcher; without a launcher, by
/// nproc_per_node, NPROC_PER_NODE, or one for each GPU.
int64_t processes_of(const Config& config) {
  if (is_launched()) return rendezvous_from_environment().world_size;
  if (config.parallel.nproc_per_node) return *config.parallel.nproc_per_node;
  if (const auto number = processes_in("NPROC_PER_NODE")) return *number;
  if (const auto node = node_from_environment(); node && node->processes_per_node) {
    return *node->processes_per_node;
  }
  const DeviceChoice device = choose_device(config.model, find_gpus);
  return device.cuda() ? device.num_gpus : 1;
}

/// Checks the configuration of a run. Returns the processes that it asks for, whether a launcher
/// has started them, and disable_tqdm.
std::tuple<int64_t, bool, bool> run_settings(const std::string& file, const Words& overrides) {
  return for_python([&]() -> std::tuple<int64_t, bool, bool> {
    const Config config = load_run_config(file, overrides);
    return {processes_of(config), is_launched(), config.output.disable_tqdm};
  });
}

/// Returns the rank, the number of ranks, the address and port at which they meet, and whether the
/// launcher serves a store there.
std::tuple<int64_t, int64_t, std::string, int64_t, bool> rendezvous() {
  return for_python([]() -> std::tuple<int64_t, int64_t, std::string, int64_t, bool> {
    const Rendezvous where = rendezvous_at(/*port=*/0);
    return {where.rank, where.world_size, where.master_address, where.master_port,
            where.launcher_hosts_store};
  });
}

/// `num_processes`: 0: of processes_of(). Returns the plan and the memory account as JSON.
std::string run_plan(const std::string& file, const Words& overrides, int64_t num_processes) {
  return for_python([&] {
    const Config config = load_session_config(file, overrides);
    Rendezvous where = rendezvous_from_environment();
    if (num_processes > 0 || !is_launched()) {
      where = {};
      where.world_size = static_cast<int>(num_processes > 0 ? num_processes : processes_of(config));
      where.local_world_size = where.world_size;
    }
    const RunPlan plan = plan_run(config, machine_of_python(), where);
    const int64_t num_tokens =
        config.optimization.per_device_train_batch_size * config.data.cutoff_len;
    const MemoryAccount account =
        account_of_run(config, plan, {.num_tokens = num_tokens, .num_labels = num_tokens});
    nlohmann::json lines = nlohmann::json::array();
    for (const MemoryAccount::Line& line : account.lines) {
      lines.push_back({{"name", line.name},
                       {"device_bytes", line.device},
                       {"host_bytes", line.host},
                       {"note", line.note}});
    }
    const nlohmann::json json{{"method", plan.parallel.method->name},
                              {"description", describe_method(plan.parallel)},
                              {"reason", plan.parallel.reason},
                              {"world_size", plan.parallel.world_size},
                              {"data_parallel_size", plan.parallel.data_size},
                              {"sequence_parallel_size", plan.parallel.sequence_size},
                              {"shard_size", plan.parallel.shard_size},
                              {"expert_parallel_size", plan.parallel.expert_parallel_size},
                              {"device", device_text(plan)},
                              {"row_tokens", num_tokens},
                              {"memory", lines},
                              {"device_bytes", account.device},
                              {"host_bytes", account.host},
                              {"library_bytes", account.beside_tensors},
                              {"bytes_per_token", account.activation_bytes_per_token},
                              {"table", table_of(account)},
                              {"warning", plan.warning},
                              {"notes", config.notes}};
    return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.class_<ControlOfPython>("Control");
  const std::string control = "__torch__.torch.classes.longspan.Control";
  library.def(("control_new() -> " + control).c_str(), control_new);
  library.def(("control_stop(" + control + " control, str why) -> ()").c_str(), control_stop);
  library.def(("control_abandon(" + control + " control) -> ()").c_str(), control_abandon);
  library.def(("run_train(" + control +
               " control, str file, str[] overrides, int listener, int port) -> str")
                  .c_str(),
              run_train);
  library.def("run_settings(str file, str[] overrides) -> (int, bool, bool)", run_settings);
  library.def("num_cores() -> int", [] { return int64_t{num_cores()}; });
  library.def("rendezvous() -> (int, int, str, int, bool)", rendezvous);
  library.def("run_plan(str file, str[] overrides, int num_processes) -> str", run_plan);
}

}  // namespace longspan
