#include "longspan/plan/mixer_exchange.h"

#include <optional>
#include <stdexcept>
#include <variant>

#include "longspan/plan/recurrent_volume.h"

namespace longspan {
namespace {

/// The parts of a mixer that share rows.
struct SharedParts {
  const AttentionSpec* attention;
  std::optional<RecurrenceSpec> recurrence;
  bool attention_alone;
};

SharedParts parts_of(const TokenMixerSpec& mixer) {
  const SharedParts parts = std::visit(
      [](const auto& kind) {
        return SharedParts{attention_in(kind), recurrence_in(kind), mixes_by_attention_alone(kind)};
      },
      mixer);
  if (parts.attention == nullptr && !parts.recurrence) {
    throw std::logic_error("a token mixer that shares rows in no way");
  }
  return parts;
}

}  // namespace

AttentionVolume mixer_volume(const ParallelPlan& plan, const TokenMixerSpec& mixer,
                             const Packing& padded, int64_t element_bytes, bool checkpointing,
                             bool output_is_known) {
  const SharedParts parts = parts_of(mixer);
  AttentionVolume volume{};
  if (parts.attention != nullptr) {
    // Steps after the attention, such as a gate, need its output for their own gradient, even if
    // the output is known.
    volume = attention_volume(plan, AttentionShape(*parts.attention, element_bytes), padded,
                              checkpointing, output_is_known && parts.attention_alone);
  }
  if (parts.recurrence) {
    const AttentionVolume more =
        recurrent_volume(plan, padded, *parts.recurrence, element_bytes, checkpointing);
    volume.forward += more.forward;
    volume.backward += more.backward;
  }
  return volume;
}

AttentionMemory mixer_memory(const ParallelPlan& plan, const TokenMixerSpec& mixer,
                             const Packing& padded, int64_t element_bytes, bool cuda) {
  const SharedParts parts = parts_of(mixer);
  AttentionMemory memory;
  if (parts.attention != nullptr) {
    AttentionShape shape(*parts.attention, element_bytes);
    shape.cuda = cuda;
    memory = attention_memory(plan, shape, padded);
  }
  if (parts.recurrence) {
    const AttentionMemory more = recurrent_memory(plan, padded, *parts.recurrence, element_bytes);
    for (double AttentionMemory::* bytes :
         {&AttentionMemory::forward, &AttentionMemory::backward, &AttentionMemory::replay,
          &AttentionMemory::inputs, &AttentionMemory::leaves, &AttentionMemory::output,
          &AttentionMemory::outside_rule}) {
      memory.*bytes += more.*bytes;
    }
  }
  return memory;
}

}  // namespace longspan
