#include "longspan/train/run_reports.h"

#include "longspan/config/config.h"

namespace longspan {

RunReports::RunReports(const Config& config, const RunMemory& memory, const RunModel& model,
                       PeakMeter* meter, Console& console)
    : traffic(model.traffic()),
      expert_traffic(model.expert_traffic()),
      memory(meter, memory.facts, memory.kept.reason),
      log(config, console),
      console(console) {}

}  // namespace longspan
