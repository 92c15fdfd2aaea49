#include "longspan/sequence_parallel/ring_pass.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/zeros_like.h>

#include <span>

namespace longspan {
namespace {

using Tensors = Rings::Tensors;

// Calls visit(tensors, owner) for every step of one ring, with the next block in flight.
void travel(const Group& ring, Tensors tensors,
            const std::function<void(const Tensors&, int step, int owner)>& visit) {
  const int R = ring.size();
  for (int step = 0; step < R; ++step) {
    const bool more = step + 1 < R;
    Pending next = more ? ring.shift(tensors) : Pending({});
    visit(tensors, step, (ring.rank() - step + R) % R);
    if (more) tensors = next.wait_all();
  }
}

void add_(Tensors& total, Tensors part) {
  if (part.empty()) return;
  if (total.empty()) {
    total = std::move(part);
  } else {
    for (size_t i = 0; i < total.size(); ++i) total[i].add_(part[i]);
  }
}

Tensors zero_gradients(const Tensors& tensors) {
  Tensors zeros;
  for (const at::Tensor& x : tensors) {
    zeros.push_back(at::zeros_like(x, x.options().dtype(at::toOpMathType(x.scalar_type())),
                                   at::MemoryFormat::Contiguous));
  }
  return zeros;
}

// `owner`: the digits of the owner's rank in the outer rings.
void forward_pass(std::span<const Group> rings, const Tensors& own, int owner,
                  const Rings::ForwardStep& step) {
  if (rings.empty()) return step(own, owner);
  travel(rings.front(), own, [&](const Tensors& travelling, int, int from) {
    forward_pass(rings.subspan(1), travelling, owner * rings.front().size() + from, step);
  });
}

Tensors backward_pass(std::span<const Group> rings, const Tensors& own, int owner,
                      const Rings::BackwardStep& step) {
  if (rings.empty()) return step(own, owner);
  const Group& ring = rings.front();
  Tensors own_gradients;
  Pending homeward({});
  travel(ring, own, [&](const Tensors& travelling, int number, int from) {
    Tensors gradients =
        backward_pass(rings.subspan(1), travelling, owner * ring.size() + from, step);
    if (number == 0) {
      own_gradients = std::move(gradients);
      return;
    }
    if (number > 1) add_(gradients, homeward.wait_all());
    if (gradients.empty()) gradients = zero_gradients(travelling);
    homeward = ring.shift(gradients);
  });
  if (ring.size() > 1) add_(own_gradients, homeward.wait_all());
  return own_gradients;
}

}  // namespace

int Rings::rank() const {
  int rank = 0;
  for (const Group& ring : groups_) rank = rank * ring.size() + ring.rank();
  return rank;
}

int Rings::size() const {
  int size = 1;
  for (const Group& ring : groups_) size *= ring.size();
  return size;
}

void Rings::forward(const Tensors& own, const ForwardStep& step) const {
  forward_pass(groups_, own, 0, step);
}

Tensors Rings::backward(const Tensors& own, const BackwardStep& step) const {
  Tensors gradients = backward_pass(groups_, own, 0, step);
  return gradients.empty() ? zero_gradients(own) : gradients;
}

}  // namespace longspan
