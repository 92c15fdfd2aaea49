#include "longspan/train/run_start.h"

#include "longspan/liveness/agreement.h"
#include "longspan/saving/read_contents.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

LocalTime template_time_of_run(const Group& world, const std::optional<ResumePoint>& resumed) {
  std::string mine;
  all_or_none(world, [&] {
    if (world.rank() != 0) return;
    const std::string saved = resumed ? resumed->state.identity.template_time : "";
    mine = !saved.empty()
               ? saved
               : (resumed ? local_time_at(resumed->state.saved_at) : local_time_now()).text;
  });
  return {world.gather_text(mine)[0]};
}

void complete_run_start(const ContentSettings& files, const OptimizationSettings& optimization,
                        const OutputSettings& output, Workers& workers, Events& events,
                        RunStart& start) {
  // Without saved states, no later run compares the files.
  if (!start.resumed && output.save_only_model) return;
  const RunIdentity then = start.resumed ? start.resumed->state.identity : RunIdentity();
  start.identity.contents =
      read_contents(files, workers.world(), workers.notices(), then.contents, events);
  if (!start.resumed) return;
  RunIdentity now = start.identity;
  if (!start.texts.empty()) now.rows = start.texts;
  all_or_none(workers.world(), [&] {
    require_same_run(start.resumed->folder, then, now,
                     optimization.per_device_train_batch_size * workers.mesh().data.size());
  });
  start.changes = changes_since(start.resumed->folder, then, now,
                                start.resumed->state.totals.progress.step + 1);
}

}  // namespace longspan
