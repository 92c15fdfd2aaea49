// A chunk, for S the state before it:
//   [w, u] = inverse right,   new = u + w S,   out = left [S; new],   S <- whole S + kept^T new.
// The gradient G of the states passes through the chunks in reverse:
//   [dS; dnew] = left^T dout,   du = dnew + kept G,   G <- whole G + w^T du + dS.
#include "longspan/kernels/delta_part.h"

#include <ATen/ATen.h>

#include <utility>

#include "longspan/spec/recurrence_spec.h"

namespace longspan {
namespace {

using cuda_rows::PartOperands;

at::Tensor as_batch(const at::Tensor& x) { return x.view({-1, x.size(-2), x.size(-1)}); }
/// out = x y, for matrices of all heads and chunks, [.., .., I, J], without copies.
void multiply_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y) {
  at::Tensor to = as_batch(out);
  at::bmm_out(to, as_batch(x), as_batch(y));
}
at::Tensor turned(const at::Tensor& x) { return x.transpose(-2, -1); }

/// Rooms of a part's tensors.
struct PartRooms {
  int64_t M, N, Z, K, V;
  at::TensorOptions numbers, fp32;

  explicit PartRooms(const DeltaPart& in)
      : M(in.k_SMK.size(1)),
        N(in.v_SNV.size(1)),
        Z(in.documents_ZC.size(0)),
        K(in.k_SMK.size(2)),
        V(in.v_SNV.size(2)),
        numbers(in.v_SNV.options().requires_grad(false)),
        fp32(numbers.dtype(at::kFloat)) {}
  /// A matrix of each value head and chunk.
  at::Tensor matrices(int64_t rows, int64_t columns) const {
    return at::empty({N, Z, rows, columns}, numbers);
  }
};

/// `dout_SNV`: undefined in a forward, which needs neither heads nor products any more.
PartOperands part_operands(const DeltaPart& in, const PartRooms& room, const at::Tensor& dout_SNV) {
  const int64_t K = room.K, V = room.V;
  PartOperands x;
  x.heads_MZACK = at::empty({room.M, room.Z, 2, kRuleChunk, K}, room.fp32);
  cuda_rows::unit_heads(x.heads_MZACK, in);
  x.products_MZACC = at::empty({room.M, room.Z, 2, kRuleChunk, kRuleChunk}, room.fp32);
  const at::Tensor both = x.heads_MZACK.flatten(2, 3), keys = x.heads_MZACK.select(2, 1);
  multiply_into(x.products_MZACC.flatten(2, 3), both, turned(keys));
  x.left_NZCL = room.matrices(kRuleChunk, K + kRuleChunk);
  x.right_NZCR = room.matrices(kRuleChunk, K + V);
  x.kept_NZCK = room.matrices(kRuleChunk, K);
  x.inverse_NZCC = room.matrices(kRuleChunk, kRuleChunk);
  x.whole_NZ = at::empty({room.N, room.Z}, room.fp32);
  if (dout_SNV.defined()) x.dout_NZCV = room.matrices(kRuleChunk, V);
  cuda_rows::chunk_operands(x, in, dout_SNV);
  return x;
}

/// Returns [w, u].
at::Tensor solved_vectors(const PartOperands& x, const PartRooms& room) {
  const at::Tensor out_NZCR = room.matrices(kRuleChunk, room.K + room.V);
  multiply_into(out_NZCR, x.inverse_NZCC, x.right_NZCR);
  return out_NZCR;
}

/// Returns [S; new], and passes the state through all chunks.
at::Tensor held_states(const PartOperands& x, const at::Tensor& solved_NZCR, const PartRooms& room,
                       const at::Tensor& state_NKV) {
  const at::Tensor out_NZLV = room.matrices(room.K + kRuleChunk, room.V);
  cuda_rows::delta_scan({.a_NZCK = solved_NZCR.narrow(3, 0, room.K),
                         .b_NZCK = x.kept_NZCK,
                         .e_NZCV = solved_NZCR.narrow(3, room.K, room.V),
                         .f_NZKV = {},
                         .x_NZCV = out_NZLV.narrow(2, room.K, kRuleChunk),
                         .states_NZKV = out_NZLV.narrow(2, 0, room.K),
                         .decay_NZ = x.whole_NZ,
                         .reversed = false},
                        state_NKV);
  return out_NZLV;
}

}  // namespace

void part_forward(const DeltaPart& in, const at::Tensor& state_NKV, const at::Tensor& out_SNV) {
  const PartRooms room(in);
  PartOperands x = part_operands(in, room, {});
  x.heads_MZACK.reset();
  x.products_MZACC.reset();
  at::Tensor solved_NZCR = solved_vectors(x, room);
  x.right_NZCR.reset();
  x.inverse_NZCC.reset();
  const at::Tensor held_NZLV = held_states(x, solved_NZCR, room, state_NKV);
  x.kept_NZCK.reset();
  solved_NZCR.reset();
  const at::Tensor out_NZCV = room.matrices(kRuleChunk, room.V);
  multiply_into(out_NZCV, x.left_NZCL, held_NZLV);
  out_SNV.copy_(out_NZCV.flatten(1, 2).narrow(1, 0, out_SNV.size(0)).transpose(0, 1));
}

void part_backward(const DeltaPart& in, const at::Tensor& state_NKV, const at::Tensor& dstate_NKV,
                   const at::Tensor& dout_SNV, const cuda_rows::PartGradients& to) {
  const PartRooms room(in);
  const int64_t K = room.K, V = room.V;
  PartOperands x = part_operands(in, room, dout_SNV);
  cuda_rows::OperandGradients d;
  {
    const at::Tensor solved_NZCR = solved_vectors(x, room), w_NZCK = solved_NZCR.narrow(3, 0, K),
                     u_NZCV = solved_NZCR.narrow(3, K, V);
    d.held_NZLV = held_states(x, solved_NZCR, room, state_NKV);
    d.dheld_NZLV = room.matrices(K + kRuleChunk, V);
    const auto states = [&](const at::Tensor& all_NZLV) { return all_NZLV.narrow(2, 0, K); };
    const auto news = [&](const at::Tensor& all) { return all.narrow(2, K, kRuleChunk); };
    // From here on, gradients replace tensors that are not read again.
    multiply_into(d.dheld_NZLV, turned(x.left_NZCL), x.dout_NZCV);
    multiply_into(x.left_NZCL, x.dout_NZCV, turned(d.held_NZLV));
    x.dout_NZCV.reset();
    cuda_rows::delta_scan({.a_NZCK = x.kept_NZCK,
                           .b_NZCK = w_NZCK,
                           .e_NZCV = news(d.dheld_NZLV),
                           .f_NZKV = states(d.dheld_NZLV),
                           .x_NZCV = u_NZCV,
                           .states_NZKV = states(d.dheld_NZLV),
                           .decay_NZ = x.whole_NZ,
                           .reversed = true},
                          dstate_NKV);
    multiply_into(w_NZCK, u_NZCV, turned(states(d.held_NZLV)));
    multiply_into(x.kept_NZCK, news(d.held_NZLV), turned(states(d.dheld_NZLV)));
    d.dinverse_NZCC = room.matrices(kRuleChunk, kRuleChunk);
    multiply_into(d.dinverse_NZCC, solved_NZCR, turned(x.right_NZCR));
    multiply_into(x.right_NZCR, turned(x.inverse_NZCC), solved_NZCR);
  }
  d.dleft_NZCL = x.left_NZCL;
  d.dright_NZCR = x.right_NZCR;
  d.dkept_NZCK = x.kept_NZCK;
  const at::Tensor dheads_MZACK = at::empty(x.heads_MZACK.sizes(), room.fp32);
  cuda_rows::chunk_operands_backward(to, dheads_MZACK, d, x, in);
  // Products are heads times keys.
  const auto all = [](const at::Tensor& of_heads) { return as_batch(of_heads.flatten(2, 3)); };
  const auto keys = [](const at::Tensor& of_heads) { return as_batch(of_heads.select(2, 1)); };
  const at::Tensor dproducts = all(x.products_MZACC);
  all(dheads_MZACK).baddbmm_(dproducts, keys(x.heads_MZACK));
  keys(dheads_MZACK).baddbmm_(turned(dproducts), all(x.heads_MZACK));
  cuda_rows::unit_heads_backward(to, dheads_MZACK, in);
}

}  // namespace longspan
