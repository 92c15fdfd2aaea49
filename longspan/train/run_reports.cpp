#include "longspan/train/run_reports.h"

#include "longspan/config/config.h"

namespace longspan {

RunReports::RunReports(const Config& config, const RunPlan& plan, const RunData& data,
                       const RunModel& model, PeakMeter* meter, Console& console)
    : traffic(model.traffic()),
      memory(meter, memory_facts(config, plan.attended, plan.parallel, model.account(),
                                 row_lengths(*data.train, config.per_device_train_batch_size),
                                 plan.computer())),
      log(config, console),
      console(console) {}

}  // namespace longspan
