#include "longspan/optim/flat_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "longspan/memory/host_memory.h"
#include "longspan/optim/loose_memory.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

constexpr size_t kReductionsAtOnce = 2;

}  // namespace

FlatParameters::FlatParameters(const std::vector<const ParameterSource*>& sources,
                               const FlatOptions& options)
    : options_(options) {
  const c10::NoGradGuard no_grad;
  const int64_t num_ranks = options.shard.size();
  int64_t size = 0;
  for (const ParameterSource* source : sources) {
    begins_.push_back(size);
    size += round_up(source->spec.num_elements(), kBufferAlignment);
  }
  share_size_ = round_up((size + num_ranks - 1) / num_ranks, kBufferAlignment);
  const int64_t my_begin = options.shard.rank() * share_size_;

  masters_are_whole_ =
      whole_stays() && !options.masters_on_host && options.dtype == options.whole_dtype;
  const auto whole_options = at::TensorOptions(options.device).dtype(options.whole_dtype);
  if (whole_stays()) {
    whole_ = at::zeros({num_ranks * share_size_}, whole_options);
    whole_is_there_ = true;
  } else {
    whole_ = buffer_without_memory(num_ranks * share_size_, whole_options);
  }
  masters_ = masters_are_whole_ ? whole_.narrow(0, my_begin, share_size_)
                                : new_share(options.dtype).zero_();

  for (size_t i = 0; i < sources.size(); ++i) {
    const ParameterSource& source = *sources[i];
    const at::Tensor parameter = leaf_over(whole_, begins_[i], source.spec.shape);
    const int64_t begin = begins_[i], end = begin + source.spec.num_elements();
    const int64_t first = std::max(begin, my_begin), last = std::min(end, my_begin + share_size_);
    if (whole_stays() || first < last) {
      const at::Tensor whole = whole_stays() ? source.make() : at::Tensor();
      if (whole_stays()) parameter.copy_(whole);
      if (first < last) {
        const at::Tensor shard = masters_.narrow(0, first - my_begin, last - first);
        if (!masters_are_whole_) {
          shard.copy_(whole.defined() ? whole.flatten().slice(0, first - begin, last - begin)
                                      : source.make.run(first - begin, last - begin));
        }
        shards_.push_back({source.spec.name, first - begin, last - begin, shard, source.spec});
        source_of_shard_.push_back(i);
      }
    }
    parameters_.push_back(parameter);
    parameters_.back().set_requires_grad(options.trained);
  }
  if (options.share_on_device) {
    device_share_ = at::empty({share_size_}, whole_options).copy_(masters_);
  }
}

int64_t FlatParameters::device_bytes() const {
  int64_t total = whole_stays() ? static_cast<int64_t>(whole_.nbytes()) : 0;
  if (!masters_are_whole_ && !options_.masters_on_host) {
    total += static_cast<int64_t>(masters_.nbytes());
  }
  return total + (device_share_.defined() ? static_cast<int64_t>(device_share_.nbytes()) : 0);
}

int64_t FlatParameters::host_bytes() const {
  if (!options_.masters_on_host) return 0;
  const auto cast = static_cast<int64_t>(c10::elementSize(options_.whole_dtype));
  return static_cast<int64_t>(masters_.nbytes()) + (keeps_cast() ? share_size_ * cast : 0);
}

at::Tensor FlatParameters::new_share(at::ScalarType dtype) const {
  if (options_.masters_on_host) return empty_on_host({share_size_}, dtype, options_.device);
  return at::empty({share_size_}, at::TensorOptions(options_.device).dtype(dtype));
}

/// A cast on the host halves the transfer to the device, and copies of equal dtypes are
/// asynchronous.
at::Tensor FlatParameters::masters_to_send() {
  if (!options_.masters_on_host || options_.dtype == options_.whole_dtype) return masters_;
  if (!keeps_cast()) return cast_masters();
  if (!cast_share_.defined()) cast_share_ = cast_masters();
  return cast_share_;
}

at::Tensor FlatParameters::cast_masters() const {
  return empty_on_host({share_size_}, options_.whole_dtype, options_.device).copy_(masters_);
}

at::Tensor FlatParameters::share_to_send() {
  if (device_share_.defined()) return device_share_;
  const bool as_it_is = !options_.masters_on_host && options_.dtype == options_.whole_dtype;
  if (as_it_is && options_.shard.size() > 1) return masters_;
  return at::empty({share_size_}, whole_.options()).copy_(masters_to_send(), /*non_blocking=*/true);
}

void FlatParameters::over_wholes(const std::function<bool(size_t source)>& is_wanted,
                                 const WholeWork& work) {
  const c10::NoGradGuard no_grad;
  bool any = false;
  for (size_t i = 0; i < parameters_.size(); ++i) any = any || is_wanted(i);
  if (!any) return;
  const int64_t my_begin = options_.shard.rank() * share_size_;
  const at::Tensor share =
      at::zeros({share_size_}, at::TensorOptions(options_.device).dtype(work.dtype));
  for (size_t p = 0; p < shards_.size(); ++p) {
    const size_t source = source_of_shard_[p];
    if (!is_wanted(source)) continue;
    const ParameterShard& shard = shards_[p];
    share.narrow(0, begins_[source] + shard.begin - my_begin, shard.end - shard.begin)
        .copy_(work.make(p).flatten());
  }
  const at::Tensor all = options_.shard.all_gather(share).wait();
  for (size_t p = 0; p < shards_.size(); ++p) {
    const size_t source = source_of_shard_[p];
    if (!is_wanted(source)) continue;
    const at::Tensor& parameter = parameters_[source];
    work.use(p, all.narrow(0, begins_[source], parameter.numel()).view(parameter.sizes()));
  }
}

void FlatParameters::start_gather(const SideStream& side) {
  if (whole_is_there_ || gathering_) return;
  const c10::NoGradGuard no_grad;
  side.run([&] { gathering_ = options_.shard.all_gather(share_to_send()); });
}

void FlatParameters::gather(const SideStream& side) {
  if (whole_is_there_) return;
  start_gather(side);
  // Join before the wait, because the collective waits for work on the side stream too.
  side.join();
  at::Tensor gathered = std::exchange(gathering_, std::nullopt)->wait();
  fill_whole_from(std::move(gathered));
}

void FlatParameters::fill_whole_from(at::Tensor gathered) {
  // With one rank, the all-gather returns its input.
  if (device_share_.defined() && gathered.is_alias_of(device_share_)) gathered = gathered.clone();
  move_memory(whole_, gathered);
  whole_is_there_ = true;
}

void FlatParameters::release() {
  if (whole_stays() || !whole_is_there_) return;
  drop_memory(whole_);
  whole_is_there_ = false;
}

void FlatParameters::open_gradients() {
  if (!options_.trained || flat_gradient_.defined()) return;
  const c10::NoGradGuard no_grad;
  flat_gradient_ = at::zeros({options_.shard.size() * share_size_},
                             at::TensorOptions(options_.device).dtype(options_.dtype));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].mutable_grad() = leaf_over(flat_gradient_, begins_[i], parameters_[i].sizes());
  }
}

/// Copies the gradients of parameters whose uses are not announced into one buffer.
void FlatParameters::collect_gradients() {
  if (flat_gradient_.defined()) return;
  flat_gradient_ = at::zeros({options_.shard.size() * share_size_},
                             at::TensorOptions(options_.device).dtype(options_.dtype));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor gradient = std::exchange(parameters_[i].mutable_grad(), at::Tensor());
    if (!gradient.defined()) continue;
    flat_gradient_.narrow(0, begins_[i], gradient.numel()).copy_(gradient.flatten());
  }
}

void FlatParameters::start_reduction(const SideStream& side, bool is_last) {
  const c10::NoGradGuard no_grad;
  collect_gradients();
  reduces_last_ = is_last;
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  at::Tensor flat = std::exchange(flat_gradient_, {});
  // CPU collectives hold their input themselves, and nothing runs concurrently.
  if (!options_.device.is_cpu()) reducing_from_ = flat;
  const int64_t num_ranks = options_.shard.size();
  const int64_t chunk_bytes = options_.chunk_bytes.value_or(reduction_chunk_bytes(num_ranks));
  const int64_t chunk =
      std::max<int64_t>(1, chunk_bytes / (num_ranks * static_cast<int64_t>(flat.element_size())));
  const bool at_once = num_ranks == 1 || share_size_ <= chunk ||
                       options_.shard.scatters_in_place(flat.scalar_type());
  // Runs on the side stream, which waits for its own collectives; the computation does not wait.
  side.run([&] {
    if (at_once) {
      reductions_.push_back({0, options_.shard.reduce_scatter(flat)});
      return;
    }
    const at::Tensor shares = flat.view({num_ranks, share_size_});
    for (int64_t begin = 0; begin < share_size_; begin += chunk) {
      if (reductions_.size() == kReductionsAtOnce) receive_first(side);
      const at::Tensor part =
          shares.narrow(1, begin, std::min(chunk, share_size_ - begin)).contiguous();
      reductions_.push_back({begin, options_.shard.reduce_scatter(part.view({-1}))});
    }
  });
}

void FlatParameters::receive_first(const SideStream& side) {
  Reduction first = std::move(reductions_.front());
  reductions_.pop_front();
  receive(first.sum.wait(), first.begin, side);
}

void FlatParameters::finish_reduction(const SideStream& side) {
  if (reductions_.empty()) return;
  side.run([&] {
    while (!reductions_.empty()) receive_first(side);
    if (reduces_last_) start_replica_sum();
  });
  // The computation reuses the reduced buffer, so it must wait until the reduction has read it. The
  // backward of a unit has hidden the latency.
  side.join();
  reducing_from_.reset();
}

/// A GPU's sum that is on its way to the host is summed over the replicas at the end of the step.
void FlatParameters::start_replica_sum() {
  const bool is_landing = options_.masters_on_host && !options_.device.is_cpu();
  if (options_.replicas.size() == 1 || is_landing) return;
  sums_replicas_ = true;
  replica_sum_ = options_.replicas.sum_async_(share_gradient_);
}

void FlatParameters::receive(at::Tensor sum, int64_t begin, const SideStream& side) {
  const c10::NoGradGuard no_grad;
  if (!options_.masters_on_host || options_.device.is_cpu()) return add_to_share(sum, begin);
  const at::Tensor on_host = empty_on_host(sum.sizes(), sum.scalar_type(), options_.device);
  auto wait = side.run([&] { on_host.copy_(sum, /*non_blocking=*/true); });
  landing_.push_back({std::move(sum), on_host, begin, std::move(wait)});
}

void FlatParameters::land(const SideStream& side) {
  for (const Landing& landing : std::exchange(landing_, {})) {
    landing.wait();
    add_to_share(landing.host_sum, landing.begin);
  }
  if (replica_sum_) side.run([&] { std::exchange(replica_sum_, std::nullopt)->wait_all(); });
}

void FlatParameters::add_to_share(const at::Tensor& sum, int64_t begin) {
  const c10::NoGradGuard no_grad;
  if (!share_gradient_.defined()) {
    const bool taken = sum.numel() == share_size_ && !options_.masters_on_host;
    share_gradient_ = taken ? sum : new_share(options_.dtype).zero_();
    if (taken) return;
  }
  share_gradient_.narrow(0, begin, sum.numel()).add_(sum);
}

void FlatParameters::finish_gradients() {
  if (!options_.trained || !share_gradient_.defined()) return;
  const c10::NoGradGuard no_grad;
  if (!sums_replicas_ && options_.replicas.size() > 1) {
    const at::Tensor sum = share_gradient_.to(options_.device);
    options_.replicas.sum_(sum);
    if (!sum.is_same(share_gradient_)) share_gradient_.copy_(sum);
  }
  for (ParameterShard& shard : shards_) {
    shard.values.mutable_grad() = share_gradient_.narrow(
        0, shard.values.storage_offset() - masters_.storage_offset(), shard.values.numel());
  }
}

void FlatParameters::drop_gradients() {
  for (ParameterShard& shard : shards_) shard.values.mutable_grad().reset();
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  share_gradient_.reset();
  flat_gradient_.reset();
  sums_replicas_ = false;
}

void FlatParameters::publish(const SideStream& side) {
  const c10::NoGradGuard no_grad;
  // The previous upload is complete, since the host has waited for the step's gradients. Its buffer
  // may be overwritten.
  if (cast_share_.defined()) cast_share_.copy_(masters_);
  if (device_share_.defined()) {
    side.run([&] { device_share_.copy_(masters_to_send(), /*non_blocking=*/true); });
  }
  if (!whole_stays() || (masters_are_whole_ && options_.shard.size() == 1)) return;
  side.run([&] { gathering_ = options_.shard.all_gather(share_to_send()); });
  side.join();
  fill_whole_from(std::exchange(gathering_, std::nullopt)->wait());
}

}  // namespace longspan
