// Parameters of one unit in one buffer, of which each rank holds a share.
// P: ranks of the shard group, S: numbers of a share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/memory/side_stream.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/state_piece.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {

/// How a flat buffer is stored, gathered and reduced.
struct FlatOptions {
  Group shard;     // the ranks that hold one copy together
  Group replicas;  // the ranks that hold the same share
  at::Device device = at::kCPU;
  at::ScalarType dtype;        // of the masters: the share that is trained
  at::ScalarType whole_dtype;  // in which the values are used
  bool trained = false;
  bool gathered_for_use = false;   // ZeRO-3: the whole is there only while it is used
  bool scattered_at_once = false;  // ZeRO-2 and 3: gradients are summed into shares in the backward
  bool masters_on_host = false;    // and so the sums of gradients, where trained
  /// ZeRO-3 with masters on the host for the optimizer's sake alone: the device holds a share to
  /// gather from.
  bool share_on_device = false;
};

/// The values of some parameters, one after the other in a buffer that is padded to P equal shares.
/// Rank r of the shard group holds share r. Parameters are views of the buffer. gather() and
/// release() allocate and free its storage; the tensor objects remain valid.
///
/// All ranks of the group call the collective members in the same order.
class FlatParameters {
 public:
  /// Makes the parameters one at a time. Holds this rank's share, or everything where the whole
  /// buffer stays.
  FlatParameters(const std::vector<const ParameterSource*>& sources, const FlatOptions& options);

  const FlatOptions& options() const { return options_; }
  /// Bytes of values that this rank holds between uses.
  int64_t device_bytes() const;
  int64_t host_bytes() const;
  /// In the order of the sources.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// This rank's pieces of them.
  std::vector<ParameterPiece>& pieces() { return pieces_; }

  /// Makes parameters whole from what `work` makes of this rank's pieces of them: those for which
  /// `is_wanted(number of the source)` is true, the same on all ranks. Collective.
  void over_wholes(const std::function<bool(size_t source)>& is_wanted, const WholeWork& work);

  /// Starts to gather the whole buffer, unless it is there or on its way. Collective.
  void start_gather(const SideStream& side);
  /// Finishes the gather: the whole buffer is there. Collective.
  void gather(const SideStream& side);
  /// Frees the storage of the whole buffer, where it is gathered for use.
  void release();

  /// Makes the parameters' gradients zeroed views of one buffer. Does nothing where they are that
  /// already, or where each gradient stays by itself until the end of the step.
  void open_gradients();
  bool gradients_are_open() const { return flat_gradient_.defined(); }
  /// Takes the gradients from the parameters and begins to sum them over the shard group. Sums
  /// buffers above `chunk_bytes` in chunks, two of which are under way at a time; what waits for
  /// all but the last two is the side stream. Collective.
  void start_reduction(int64_t chunk_bytes, const SideStream& side);
  /// Finishes the reduction on the side: adds the sum to this rank's share, or starts to copy it to
  /// the host. Collective.
  void finish_reduction(const SideStream& side);
  /// Adds what was copied to the host to the share there.
  void land();

  /// At the end of a step: sums the gradients that are still with the parameters, then sums over
  /// the replicas. The pieces then have their gradients. Collective.
  void finish_gradients(int64_t chunk_bytes, const SideStream& side);
  void drop_gradients();
  /// The share's values have changed: the whole, where it stays, and what is gathered from.
  /// Collective.
  void publish(const SideStream& side);

 private:
  bool whole_stays() const { return !options_.gathered_for_use; }
  /// Whether the host holds the masters in the whole's dtype, too: each use is gathered from there.
  bool keeps_cast() const {
    return options_.masters_on_host && options_.gathered_for_use && !options_.share_on_device &&
           options_.dtype != options_.whole_dtype && !options_.device.is_cpu();
  }
  /// The masters in the whole's dtype, where they are.
  at::Tensor masters_to_send();
  at::Tensor cast_masters() const;
  /// This rank's share in the whole's dtype, on the device.
  at::Tensor share_to_send();
  void fill_whole_from(at::Tensor gathered);
  void receive_first(const SideStream& side);
  /// sum: [<= S], from `begin` on in the share.
  void receive(at::Tensor sum, int64_t begin, const SideStream& side);
  void add_to_share(const at::Tensor& sum, int64_t begin);
  at::Tensor new_share(at::ScalarType dtype) const;

  FlatOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> begins_;  // of the parameters in the buffer
  int64_t share_size_ = 0;       // S
  at::Tensor whole_;             // [P S]; its memory may be absent
  bool whole_is_there_ = false;
  at::Tensor masters_;  // [S]; a view of whole_ where they are the same numbers
  bool masters_are_whole_ = false;
  at::Tensor device_share_;  // [S], where share_on_device
  at::Tensor cast_share_;    // [S], where keeps_cast
  std::vector<ParameterPiece> pieces_;
  std::vector<size_t> source_of_piece_;

  std::optional<Pending> gathering_;
  at::Tensor flat_gradient_;   // [P S]
  at::Tensor reducing_from_;   // the same, on its way
  at::Tensor share_gradient_;  // [S]
  struct Reduction {
    int64_t begin;  // in the share
    Pending sum;
  };
  std::deque<Reduction> reductions_;
  struct Landing {
    at::Tensor device_sum, host_sum;
    int64_t begin;
    std::function<void()> wait;
  };
  std::vector<Landing> landing_;
};

}  // namespace longspan
