#include "longspan/train/run_start.h"

#include "longspan/config/config.h"
#include "longspan/liveness/agreement.h"
#include "longspan/saving/read_contents.h"
#include "longspan/train/run_identity.h"

namespace longspan {

RunStart find_run_start(const Config& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data, const Launch& launch,
                        Notices& notices, Console& console) {
  RunStart start;
  start.launch = launch;
  start.identity = identity_of(config, mesh, model, trained, data);
  start.resumed = find_resume_point(config, mesh.world, notices, launch, console);
  // Where no state is kept, nobody will ask what the files were.
  if (!start.resumed && config.save_only_model) return start;
  const RunIdentity then = start.resumed ? start.resumed->state.identity : RunIdentity();
  start.identity.contents = read_contents(config, mesh.world, notices, then.contents, console);
  if (!start.resumed) return start;
  all_or_none(mesh.world, [&] {
    require_same_run(start.resumed->folder, then, start.identity,
                     config.per_device_train_batch_size * mesh.data.size());
  });
  start.changes = changes_since(start.resumed->folder, then, start.identity,
                                start.resumed->state.totals.progress.step + 1);
  return start;
}

}  // namespace longspan
