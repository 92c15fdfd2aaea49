#include "longspan/train/run_saving.h"

#include "longspan/checkpoint/model_folder.h"
#include "longspan/registers/update_rule.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

RunSaving::RunSaving(const SavingParts& parts)
    : saver(parts.session.saver(parts.data.chat)),
      checkpoints(parts.output, parts.workers.world(), parts.workers.notices(), saver,
                  parts.start.folder()),
      patient_saver(parts.workers.world(), parts.workers.notices(), parts.control,
                    parts.session.events()),
      config_(parts.output),
      rule_(update_rule_of(parts.optimization)),
      trains_in_bf16_(parts.model.pure_bf16),
      schedule_(parts.schedule),
      num_processes_(parts.workers.world().size()),
      sharded_(parts.session.sharded_parameters() != nullptr) {}

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
