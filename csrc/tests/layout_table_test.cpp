// The tables of a layout: what is sound, and where each kind of wrong entry is told.
// tests/unit/test_layout.py has the messages as people see them; here are entries that no writer of ours makes.
#include "layout_table.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "errors.hpp"
#include "layout_bytes.hpp"

namespace flashboot {
namespace {

LayoutTable table_of(const std::string& bytes, std::vector<std::uint64_t> ends = {4096}) {
  return {std::as_bytes(std::span(bytes)), std::move(ends), 1};
}

// Empty when it is sound.
std::string wrong_with(const Document& document, std::vector<std::uint64_t> ends = {4096}) {
  try {
    (void)table_of(document.bytes(), std::move(ends));
  } catch (const Malformed& error) {
    return error.what();
  }
  return {};
}

TEST(LayoutTable, ReadsWhatWasWritten) {
  const LayoutTable table = table_of(Document().bytes());
  EXPECT_EQ(table.paths(), (std::vector<std::string>{"", "a"}));
  ASSERT_EQ(table.tensors().size(), 1U);
  EXPECT_EQ(table.forms()[0].extent, 6U);
  EXPECT_EQ(table.name(table.bindings()[0].attribute), "w");
}

TEST(LayoutTable, EveryWidthIsReadAndNoOther) {
  for (const std::uint8_t width : {0, 1, 2, 4, 8}) {
    Document document;
    document.columns[9] = {width, {24}};
    EXPECT_EQ(wrong_with(document), "") << int{width};
  }
  Document document;
  document.columns[9] = {3, {24}};
  EXPECT_EQ(wrong_with(document), "'bytes of storage row' has entries of 3 bytes");
}

TEST(LayoutTable, EveryCutIsTold) {
  const std::string whole = Document().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW((void)table_of(whole.substr(0, size)), Malformed) << size;
  }
  Document document;
  document.rest = "x";
  EXPECT_EQ(wrong_with(document), "1 bytes follow the last table");
}

TEST(LayoutTable, ManyEntriesFromFewBytesAreBounded) {
  Document document;
  document.counts[6] = (1U << 18) + 1;
  EXPECT_EQ(wrong_with(document), "262145 tensors; at most 262144");
}

TEST(LayoutTable, ModulesAreATree) {
  Document loop;
  loop.columns[7] = {1, {1}};
  EXPECT_EQ(wrong_with(loop), "module 1 comes before its parent 1");
  Document twice;
  twice.counts[3] = 2;
  twice.columns[7] = {1, {0, 0}};
  twice.columns[8] = {1, {1, 1}};
  EXPECT_EQ(wrong_with(twice), "module 2 ('a') is there twice");
  Document dot;
  dot.names = "P.w";
  EXPECT_EQ(wrong_with(dot), "module 1 has a dot in its name '.'");
}

TEST(LayoutTable, NamesAreTextAndDiffer) {
  Document twice;
  twice.names = "Paa";
  EXPECT_EQ(wrong_with(twice), "the name 'a' is there twice");
  Document binary;
  binary.names = "Pa\xff";
  EXPECT_EQ(wrong_with(binary), "name 2 is empty or no text");
}

TEST(LayoutTable, ShapesThatOverflowAreTold) {
  Document document;
  document.columns[5] = {8, {std::uint64_t{1} << 49, std::uint64_t{1} << 49}};
  document.columns[6] = {8, {(std::uint64_t{1} << 50) - 1, (std::uint64_t{1} << 50) - 1}};
  EXPECT_EQ(wrong_with(document), "form 0 reaches over more elements than an arena has bytes");
  document.columns[5] = {8, {0, std::uint64_t{1} << 49}};  // no elements: reach counts, and is too far
  EXPECT_NE(wrong_with(document), "");
  document.columns[5] = {8, {0, 1}};
  EXPECT_EQ(wrong_with(document), "");
}

TEST(LayoutTable, StoragesLieInSegments) {
  Document document;
  document.columns[9] = {2, {4097}};
  EXPECT_NE(wrong_with(document), "");
  document.columns[9] = {2, {4096}};
  EXPECT_EQ(wrong_with(document), "");
  EXPECT_EQ(wrong_with(document, {2048, 4096}),
            "storage 0 (bytes 0 to 4096) goes beyond its segment's end at byte 2048");
  document.columns[11] = {1, {4}};
  EXPECT_EQ(wrong_with(document, {2048, 8192}), "");
  EXPECT_EQ(wrong_with(document, {}), "the segments are none, in no order, or beyond 2^50 bytes");
}

}  // namespace
}  // namespace flashboot
