#include "longspan/train/run_saving.h"

#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"

namespace longspan {

RunSaving::RunSaving(const Config& config, Workers& workers, const Session& model,
                     const RunData& data, const RunStart& start, const StepSchedule& schedule,
                     RunControl& control, Events& events)
    : saver(model.saver(data.chat)),
      checkpoints(config.output, workers.world(), workers.notices(), saver, start.folder()),
      patient_saver(workers.world(), workers.notices(), control, events),
      config_(config.output),
      rule_(update_rule_of(config.optimization)),
      trains_in_bf16_(config.model.pure_bf16),
      schedule_(schedule),
      num_processes_(workers.world().size()),
      sharded_(model.sharded_parameters() != nullptr) {}

DiskFacts RunSaving::disk(int64_t steps_done) const {
  const SavedModel& saved = saver.model();
  const bool rounds = c10::elementSize(saved.dtype) < 4 && !trains_in_bf16_;
  DiskFacts facts = disk_facts(config_, rule_, saved, rounds);
  if (!saved.lora) facts.other_bytes += num_copied_bytes(saved.source_folder, saved.config);
  facts.num_processes = num_processes_;
  facts.sharded = sharded_;
  facts.num_saves = schedule_.num_saves_after(steps_done);
  return facts;
}

}  // namespace longspan
