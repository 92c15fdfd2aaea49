#include "longspan/plan/plan_request.h"

#include <algorithm>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/settings/choices.h"

namespace longspan {

PlanRequest plan_request(const RequestSettings& settings, const ModelSpec& model, int world_size,
                         int ranks_per_machine, bool cuda) {
  PlanRequest request;
  request.recurrence = recurrence_of(model);
  request.world_size = world_size;
  request.ranks_per_machine = ranks_per_machine;
  request.sequence_size =
      has_own_degrees(settings.parallel) ? 1 : settings.parallel.sequence_parallel_size;
  if (settings.parallel.sequence_parallel_mode &&
      *settings.parallel.sequence_parallel_mode != "auto") {
    request.method = method_named(*settings.parallel.sequence_parallel_mode);
  }
  request.ulysses_degree = settings.parallel.sequence_parallel_ulysses_degree;
  request.ring_degree = settings.parallel.sequence_parallel_ring_degree;
  request.window_size = settings.parallel.sequence_parallel_window_size;
  request.head_waves = settings.parallel.sequence_parallel_head_waves;
  request.zero_stage = zero_stage_of(settings.memory);
  request.shard_size = settings.memory.zero_shard_size;
  request.expert_parallel_size = settings.parallel.expert_parallel_size;
  if (const MixtureOfExpertsSpec* experts = experts_of(model)) {
    request.num_experts = experts->num_experts;
  }
  auto layers = attentions_of(model);
  if (layers.empty()) {
    throw UserError(
        "No layer of the model is one of softmax attention, by which a plan shares rows. Take a "
        "model that has one.");
  }
  request = with_layers(std::move(request), std::move(layers));
  // The documents are equal, so more of them change no choice.
  constexpr int64_t kMostRows = 4096;
  request.row = Packing::from_lengths(
      std::vector<int64_t>(std::min(settings.optimization.per_device_train_batch_size, kMostRows),
                           settings.data.cutoff_len));
  request.element_bytes = computes_in_bf16(settings.model, settings.optimization) ? 2 : 4;
  request.cuda = cuda;
  if (!settings.parallel.network_rates.empty()) {
    request.network =
        read_network_rates(settings.parallel.network_rates, cuda, ranks_per_machine < world_size);
  }
  request.checkpointing = !settings.model.disable_gradient_checkpointing;
  return request;
}

}  // namespace longspan
