#include "longspan/train/run_reports.h"

#include "longspan/config/config.h"
#include "longspan/plan/step_plan.h"
#include "longspan/registers/stage.h"

namespace longspan {

RunReports::RunReports(const Config& config, const RunMemory& memory, PeakMeter* meter,
                       Events& events)
    : memory(meter, memory.facts, memory.kept.reason),
      log(config.output,
          {.train_batch_size = config.optimization.per_device_train_batch_size,
           .num_train_epochs = epochs_of(config.optimization.num_train_epochs),
           .drawn = stage_of(config.method).drawn},
          events) {
  if (config.output.plot_loss) pictures.emplace(log.training_log(), events);
}

}  // namespace longspan
