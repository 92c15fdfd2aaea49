#include "longspan/train/run_saving.h"

namespace longspan {

RunSaving::RunSaving(const OutputSettings& config, Workers& workers, const RunModel& model,
                     const RunData& data, const RunStart& start, Host& host, Console& console)
    : saver(model.saver(data)),
      checkpoints(config, workers.world(), workers.notices(), saver, start.folder()),
      patient_saver(workers.world(), workers.notices(), host, console) {}

}  // namespace longspan
