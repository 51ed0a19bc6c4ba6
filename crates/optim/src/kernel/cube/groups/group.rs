use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::block::BLOCKS;

/// The part of a unit in the work on a group, which several units share.
#[derive(CubeType)]
pub(super) struct Group {
    /// The number of the group.
    pub(super) index: usize,
    /// The first block of the unit, counted within the group.
    pub(super) first: usize,
    /// A word for every block of the groups of a cube.
    words: Shared<[u32]>,
    /// Index of the first word of this group.
    start: usize,
    /// Number of blocks of a unit.
    #[cube(comptime)]
    pub(super) blocks: usize,
}

#[cube]
impl Group {
    /// Creates the part of this unit. `units` work on a group, `cube` units on the groups of a cube.
    pub(super) fn new(#[comptime] units: usize, #[comptime] cube: usize) -> Self {
        let blocks = comptime!(BLOCKS / units);
        let unit = UNIT_POS as usize;
        Group {
            index: ABSOLUTE_POS / units,
            first: unit % units * blocks,
            words: Shared::new_slice(comptime!(cube * BLOCKS / units)),
            start: unit / units * BLOCKS,
            blocks,
        }
    }

    /// Returns the number of a block within the parameter.
    pub(super) fn block(&self, own: usize) -> usize {
        self.index * BLOCKS + self.first + own
    }

    /// Shares a word of each block with the units of the group. All units of the cube call this together.
    pub(super) fn share(&mut self, words: &Array<u32>) {
        let blocks = comptime!(self.blocks);
        // The words shared before have been read.
        self.meet();
        #[unroll(blocks == 1)]
        for own in 0..blocks {
            self.words[self.start + self.first + own] = words[own];
        }
        self.meet();
    }

    /// Returns the word of a block that was shared last.
    pub(super) fn word(&self, block: usize) -> u32 {
        self.words[self.start + block]
    }

    /// Returns the sum of the words of all blocks that were shared last.
    pub(super) fn sum(&self) -> u32 {
        let mut sum = 0u32;
        #[unroll]
        for block in 0..BLOCKS {
            sum += self.word(block);
        }
        sum
    }

    /// Returns the largest word of all blocks that were shared last.
    pub(super) fn max(&self) -> u32 {
        let mut max = 0u32;
        #[unroll]
        for block in 0..BLOCKS {
            max = max.max(self.word(block));
        }
        max
    }

    /// Waits for the other units, if there are any.
    fn meet(&self) {
        if comptime!(self.blocks < BLOCKS) {
            sync_cube();
        }
    }
}
