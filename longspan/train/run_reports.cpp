#include "longspan/train/run_reports.h"

#include "longspan/plan/step_plan.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/optimization_settings.h"

namespace longspan {

RunReports::RunReports(const MethodSettings& method, const OptimizationSettings& optimization,
                       const OutputSettings& output, const RunMemory& memory, PeakMeter* meter,
                       Events& events)
    : memory(meter, memory.facts, memory.text),
      log(output,
          {.train_batch_size = optimization.per_device_train_batch_size,
           .num_train_epochs = epochs_of(optimization.num_train_epochs),
           .drawn = stage_of(method).drawn},
          events) {
  if (output.plot_loss) pictures.emplace(log.training_log(), events);
}

}  // namespace longspan
