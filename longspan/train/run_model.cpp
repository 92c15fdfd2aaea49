#include "longspan/train/run_model.h"

#include <stdexcept>
#include <utility>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/cuda.h"
#include "longspan/config/choices.h"
#include "longspan/config/config.h"
#include "longspan/liveness/agreement.h"
#include "longspan/stages/stage.h"
#include "longspan/train/reference_cache.h"

namespace longspan {
namespace {

const BlockKernel& block_kernel_of(const DeviceChoice& device) {
  if (!device.cuda()) return cpu_block_kernel();
  return load_cuda().block_kernel(cpu_block_kernel(), cuda_block_kernel());
}

/// Returns null if activations stay on the device.
std::unique_ptr<ActivationOffload> activation_offload(const MemorySettings& config,
                                                      at::Device device) {
  switch (activations_offloaded_to(config)) {
    case OffloadedTo::kNowhere:
      return nullptr;
    case OffloadedTo::kMemory:
      return std::make_unique<ActivationOffload>(device, "");
    case OffloadedTo::kDisk:
      return std::make_unique<ActivationOffload>(device, config.offload_folder);
  }
  throw std::logic_error("activations go nobody knows where");
}

}  // namespace

RunModel::RunModel(const Config& config, const RunPlan& plan, Workers& workers)
    : config_(config),
      plan_(plan),
      workers_(workers),
      device_(device_of(plan.device, plan.own_gpu())),
      attention_(make_attention(plan.parallel, workers.mesh(), block_kernel_of(plan.device))),
      sharding_(sharding_of(config, workers.mesh(), device_)) {
  if (plan.parallel.expert_parallel_size > 1) {
    experts_ = std::make_unique<ExpertParallel>(workers.mesh().experts);
  }
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    activations_ = activation_offload(config.memory, device_);
    trained_ = load_trained_model(config, plan.model, sharding_, device_);
    trained_.options.activation_store = activations_.get();
    trained_.options.expert_exchange = experts_.get();
    decoder_ = std::make_unique<Decoder>(plan.model.spec, trained_.parameters, *attention_,
                                         trained_.options);
  });
}

std::unique_ptr<Reference> RunModel::make_own_reference() {
  return make_reference(config_, trained_, plan_.model, *decoder_, *attention_, sharding_, device_);
}

ShardedParameters* RunModel::divided() const {
  ShardedParameters* sharded = trained_.sharded.get();
  return sharded && !sharded->all_are_here() ? sharded : nullptr;
}

bool RunModel::prepare_training(const RunData& data, const Host& host, Console& console) {
  // With distributed experts, a rank also computes rows of other ranks.
  const bool idle_rows = (sharding_ && sharding_->stage >= 2) || experts_;
  const Stage& stage = stage_of(config_.method);
  if (stage.has_reference(config_.preferences) && !config_.preferences.precompute_ref_log_probs) {
    all_or_none_patiently(workers_.world(), workers_.notices(),
                          [&] { reference_ = make_own_reference(); });
  } else if (stage.has_reference(config_.preferences)) {
    const JoinedExamples examples(*data.train, *data.eval);
    const auto stops = [&] { return host.requested() || host.told_to_stop(); };
    const ReferenceJob job{config_,  workers_.mesh(), *attention_, device_,
                           examples, stops,           idle_rows};
    std::optional<ReferenceTable> table =
        precompute_reference(job, [&] { return make_own_reference(); }, console);
    if (!table) return false;
    reference_ = reference_table(std::move(*table));
  }
  context_.emplace(ObjectiveContext{.preferences = config_.preferences,
                                    .mesh = workers_.mesh(),
                                    .attention = *attention_,
                                    .model = *decoder_,
                                    .specs = trained_.specs,
                                    .device = device_,
                                    .reference = reference_.get(),
                                    .idle_rows = idle_rows});
  objective_ = stage.make(*context_);
  update_.emplace(decoder_->parameters(), trained_.specs, trained_.sharded.get(), workers_.world(),
                  config_.optimization, config_.memory.offload_optimizer);
  return true;
}

RowTraffic RunModel::traffic() const {
  const int64_t element_bytes = computes_in_bf16(config_.model, config_.optimization) ? 2 : 4;
  return {{workers_.mesh(), plan_.parallel, plan_.attended, element_bytes,
           !config_.model.disable_gradient_checkpointing,
           activations_ && !attention_->overlaps_projections(), device_},
          {experts_.get(), plan_.model.spec, element_bytes, device_}};
}

RunParameters RunModel::account() const {
  RunParameters parameters{.used = trained_.held(), .divided = std::nullopt, .reference = {}};
  if (trained_.sharded) parameters.divided = trained_.sharded->held_bytes();
  if (reference_) parameters.reference = reference_->held_bytes();
  return parameters;
}

ModelSaver RunModel::saver(const RunData& data) const {
  // Adapters and their optimizer are in fp32, and are saved so.
  const at::ScalarType dtype = trained_.lora
                                   ? (config_.model.pure_bf16 ? at::kBFloat16 : at::kFloat)
                                   : trained_.options.compute_dtype;
  return ModelSaver({plan_.model, dtype, config_.model.model_name_or_path, trained_.lora, data.chat,
                     trained_.specs, trained_.all});
}

}  // namespace longspan
