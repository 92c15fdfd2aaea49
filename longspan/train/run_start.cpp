#include "longspan/train/run_start.h"

#include "longspan/config/config.h"
#include "longspan/liveness/agreement.h"
#include "longspan/saving/read_contents.h"
#include "longspan/train/run_identity.h"

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

void complete_run_start(const Config& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data,
                        const LocalTime& template_time, Notices& notices, Events& events,
                        RunStart& start) {
  start.identity = identity_of(config, mesh, model, trained, data, template_time);
  // Without saved states, no later run compares the files.
  if (!start.resumed && config.output.save_only_model) return;
  const RunIdentity then = start.resumed ? start.resumed->state.identity : RunIdentity();
  start.identity.contents =
      read_contents({config.model, config.method, config.preferences, config.data}, mesh.world,
                    notices, then.contents, events);
  if (!start.resumed) return;
  all_or_none(mesh.world, [&] {
    require_same_run(start.resumed->folder, then, start.identity,
                     config.optimization.per_device_train_batch_size * mesh.data.size());
  });
  start.changes = changes_since(start.resumed->folder, then, start.identity,
                                start.resumed->state.totals.progress.step + 1);
}

}  // namespace longspan
