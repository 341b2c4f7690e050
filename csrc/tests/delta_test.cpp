// Chunks of deltas: round trips over formats, densities and classes, by every kernel that this machine has, with the
// same bytes; the way back; and what is refused.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "delta_rig.hpp"
#include "delta_window.hpp"

namespace flashboot {
namespace {

std::vector<const DeltaKernel*> kernels() {
  std::vector<const DeltaKernel*> all;
  for (const DeltaKernel* const* each = delta_kernels(); *each != nullptr; ++each) {
    all.push_back(*each);
  }
  return all;
}

struct Encoded {
  DeltaRow row;
  Data body;
};

Encoded encode(const Data& base, const Data& next, std::span<const WordRun> runs, unsigned classes,
               const DeltaKernel& kernel) {
  static DeltaWorkspace workspace;
  workspace.kernel = &kernel;
  Data out(base.size());
  const DeltaRow row = encode_chunk(base, next, 0, runs, classes, workspace, out.data());
  out.resize(row.bytes);
  return {row, row.mode == static_cast<std::uint64_t>(DeltaMode::kRaw) ? next : out};
}

void expect_round_trip(const Data& base, const Data& next, std::span<const WordRun> runs, unsigned classes) {
  const Encoded first = encode(base, next, runs, classes, *kernels().front());
  for (const DeltaKernel* kernel : kernels()) {
    const Encoded encoded = encode(base, next, runs, classes, *kernel);
    EXPECT_EQ(encoded.body, first.body) << kernel->name;
    static DeltaWorkspace workspace;
    workspace.kernel = kernel;
    ChunkPatch patch;
    patch.locate(base, 0, runs, encoded.row, encoded.body, workspace);
    patch.encode_reverse(base, workspace);
    Data target = base;
    patch.write(target);
    ASSERT_EQ(target, next) << kernel->name;

    ChunkPatch back;
    back.locate(target, 0, runs, patch.reverse_row(), patch.reverse(), workspace);
    back.write(target);
    EXPECT_EQ(target, base) << "the reverse delta, " << kernel->name;
    patch.write(target);
    patch.restore(target);
    EXPECT_EQ(target, base) << "restored, " << kernel->name;
  }
}

TEST(Delta, ComesBackForEveryFormatDensityAndNumberOfClasses) {
  for (std::uint64_t format = 0; format < kWordFormatCount; ++format) {
    const Words& words = kWordFormats[format];
    for (const std::uint32_t in : {0U, 3000U, 100U, 10U, 2U, 1U}) {
      for (const unsigned classes : {1U, 2U, 5U, 16U}) {
        Random random(format * 1000 + in * 10 + classes);
        const std::size_t bytes = (6000 + random.next() % 70) * words.bytes;
        const WordRun runs[] = {{bytes, format}};
        const Data base = weights(bytes, words, random);
        SCOPED_TRACE(testing::Message() << "format " << format << ", one in " << in << ", " << classes << " classes");
        expect_round_trip(base, changed(base, words, in, random), runs, classes);
      }
    }
  }
}

TEST(Delta, ComesBackForEverySize) {
  const Words& words = kWordFormats[3];
  for (std::size_t elements = 1; elements < 200; elements += 7) {
    Random random(elements);
    const WordRun runs[] = {{elements * 2, 3}};
    const Data base = weights(elements * 2, words, random);
    expect_round_trip(base, changed(base, words, 5, random), runs, 16);
  }
}

TEST(Delta, ComesBackForPiecesOfSeveralFormats) {
  Random random(7);
  std::vector<WordRun> runs;
  std::uint64_t end = 0;
  Data base;
  Data next;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t format = random.next() % kWordFormatCount;
    const Words& words = kWordFormats[format];
    const Data piece = weights((random.next() % 5000 + 1) * 4, words, random);
    const Data now = changed(piece, words, i % 5 == 0 ? 0 : 40, random);
    base.insert(base.end(), piece.begin(), piece.end());
    next.insert(next.end(), now.begin(), now.end());
    runs.push_back({end += piece.size(), format});
  }
  expect_round_trip(base, next, runs, 16);
}

TEST(Delta, IncompressibleBytesAreRaw) {
  Random random(3);
  const Data base = weights(kDigestChunk, kWordFormats[0], random);
  const Data next = weights(kDigestChunk, kWordFormats[0], random);
  const WordRun runs[] = {{kDigestChunk, 3}};
  EXPECT_EQ(encode(base, next, runs, 16, *kernels().front()).row.mode, static_cast<std::uint64_t>(DeltaMode::kRaw));
  expect_round_trip(base, next, runs, 16);
}

TEST(Delta, EveryStepOfAByteIsExact) {
  for (const Words& words : {kWordFormats[0], kWordFormats[6], kWordFormats[7]}) {
    for (std::uint32_t from = 0; from < 256; ++from) {
      for (std::uint32_t to = 0; to < 256; ++to) {
        if (from != to) {
          const std::uint32_t step = step_between(from, to, words);
          EXPECT_LT(step, 255U);
          EXPECT_EQ(stepped(from, step, words), to);
        }
      }
    }
  }
  EXPECT_EQ(step_between(0x8000, 0x0000, kWordFormats[3]), 1U) << "from -0 to +0";
}

struct Sample {
  Data base, next;
  std::vector<WordRun> runs;
  Encoded encoded;
};

Sample sample() {
  Random random(11);
  Sample sample;
  sample.base = weights(kDigestChunk / 16, kWordFormats[3], random);
  sample.next = changed(sample.base, kWordFormats[3], 150, random);
  sample.runs = {{kDigestChunk / 16, 3}};
  sample.encoded = encode(sample.base, sample.next, sample.runs, 16, *kernels().front());
  return sample;
}

DeltaFault fault_of(const Sample& sample, const Data& base, const DeltaRow& row, const Data& body) {
  static DeltaWorkspace workspace;
  ChunkPatch patch;
  Data target = base;
  try {
    patch.locate(base, 0, sample.runs, row, body, workspace);
    patch.write(target);
  } catch (const DeltaBroken& broken) {
    EXPECT_EQ(target, base) << "changed in spite of: " << broken.what;
    return broken.fault;
  }
  ADD_FAILURE() << "nothing was refused";
  return DeltaFault::kMalformed;
}

TEST(DeltaRefuses, AnotherBase) {
  const Sample good = sample();
  Data other = good.base;
  other[4711] ^= std::byte{1};
  EXPECT_EQ(fault_of(good, other, good.encoded.row, good.encoded.body), DeltaFault::kBase);
}

TEST(DeltaRefuses, AnotherResult) {
  const Sample good = sample();
  DeltaRow row = good.encoded.row;
  row.result_digest ^= 1;
  EXPECT_EQ(fault_of(good, good.base, row, good.encoded.body), DeltaFault::kResult);
}

TEST(DeltaRefuses, EveryBitThatIsFlippedAndEveryLengthThatIsCut) {
  const Sample good = sample();
  for (std::size_t bit = 0; bit < good.encoded.body.size() * 8; bit += 7) {
    Data body = good.encoded.body;
    body[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_NE(fault_of(good, good.base, good.encoded.row, body), DeltaFault::kBase) << "bit " << bit;
  }
  for (std::size_t size = 0; size < good.encoded.body.size(); size += 3) {
    const Data body(good.encoded.body.begin(), good.encoded.body.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(fault_of(good, good.base, good.encoded.row, body), DeltaFault::kMalformed) << size << " bytes";
  }
}

TEST(DeltaWindow, IsTheSameForEveryNumberOfThreadsAndAllOrNothing) {
  Random random(5);
  const std::size_t bytes = 3 * kDigestChunk + 4096;
  const WordRun runs[] = {{kDigestChunk + 512, 3}, {2 * kDigestChunk, 6}, {bytes, 5}};
  Data base = weights(bytes, kWordFormats[3], random);
  const Data next = changed(base, kWordFormats[3], 100, random);
  Data out(4 * kDigestChunk);
  const std::vector<DeltaRow> rows = encode_window(base, next, 0, runs, 16, 1, out.data());
  Data bodies;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::byte* body = rows[i].mode == 2 ? next.data() + i * kDigestChunk : out.data() + i * kDigestChunk;
    bodies.insert(bodies.end(), body, body + rows[i].bytes);
  }
  for (const std::size_t threads : {1, 2, 8}) {
    Data again(out.size());
    const auto same = encode_window(base, next, 0, runs, 16, threads, again.data());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(same[i].bytes, rows[i].bytes);
      const std::size_t place = i * kDigestChunk, size = rows[i].mode == 1 ? rows[i].bytes : 0;
      EXPECT_EQ(std::memcmp(again.data() + place, out.data() + place, size), 0);
    }
    const DeltaWindow window(base, 0, runs, rows, bodies, true, threads);
    Data target = base;
    window.write(target, threads);
    EXPECT_EQ(target, next);
    window.restore(target);
    EXPECT_EQ(target, base);
  }
  std::vector<DeltaRow> wrong = rows;
  wrong[2].result_digest ^= 1;
  const DeltaWindow window(base, 0, runs, wrong, bodies, false, 2);
  Data target = base;
  try {
    window.write(target, 2);
    FAIL() << "a wrong result was accepted";
  } catch (const DeltaChunkBroken& broken) {
    EXPECT_EQ(broken.chunk, 2U);
    EXPECT_EQ(broken.broken.fault, DeltaFault::kResult);
  }
  EXPECT_EQ(target, base);
}

}  // namespace
}  // namespace flashboot
