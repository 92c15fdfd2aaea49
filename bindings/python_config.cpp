#include "bindings/python_config.h"

#include <ATen/Parallel.h>

#include "cli/process/launcher_environment.h"
#include "cli/process/resources.h"
#include "longspan/config/config.h"
#include "longspan/cuda/cuda.h"

namespace longspan {

Rendezvous rendezvous_at(int64_t port) {
  Rendezvous where = rendezvous_from_environment();
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
