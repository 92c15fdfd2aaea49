#include "bindings/python_config.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdlib>

#include "cli/process/cores.h"
#include "cli/process/launcher_environment.h"
#include "cli/process/node_environment.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"

namespace longspan {

bool starts_processes() {
  const auto node = node_from_environment();
  return node && (node->processes_per_node.value_or(1) > 1 || std::getenv("RANK") == nullptr);
}

Rendezvous rendezvous_at(int64_t port) {
  Rendezvous where = rendezvous_from_environment();
  if (starts_processes()) {
    if (const int machines = node_from_environment()->num_nodes.value_or(1); machines > 1) {
      throw UserError(
          fmt::format("This job has {} machines (PET_NNODES), each with several processes, and "
                      "this process is none of them. Start the program by torchrun.",
                      machines));
    }
    where = {};
  }
  if (port != 0) where.master_port = static_cast<int>(port);
  return where;
}

Machine machine_of_python() {
  return {.find_gpus = find_gpus, .num_threads = at::get_num_threads(), .num_cores = num_cores()};
}

RunPlan plan_here(const Config& config, const Rendezvous& where) {
  RunPlan plan = plan_run(config, machine_of_python(), where);
  if (plan.device.cuda()) {
    use_gpu(plan.own_gpu(),
            {.deterministic = config.model.full_determinism, .tf32 = config.model.tf32});
  }
  return plan;
}

}  // namespace longspan
