#include "longspan/train/run_saving.h"

#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"

namespace longspan {

RunSaving::RunSaving(const Config& config, Workers& workers, const RunModel& model,
                     const RunData& data, const RunStart& start, const StepSchedule& schedule,
                     Host& host, Console& console)
    : saver(model.saver(data)),
      checkpoints(config, workers.world(), workers.notices(), saver, start.folder()),
      patient_saver(workers.world(), workers.notices(), host, console),
      config_(config),
      schedule_(schedule),
      num_processes_(workers.world().size()),
      divided_(model.divided() != nullptr) {}

DiskFacts RunSaving::disk(int64_t steps_done) const {
  const SavedModel& saved = saver.model();
  DiskFacts facts = disk_facts(config_, saved.all, saved.lora.has_value(),
                               static_cast<int64_t>(c10::elementSize(saved.dtype)));
  if (!saved.lora) facts.other_bytes += num_kept_bytes(saved.source_folder, saved.config);
  facts.num_processes = num_processes_;
  facts.divided = divided_;
  facts.num_saves = schedule_.num_saves_after(steps_done);
  return facts;
}

}  // namespace longspan
