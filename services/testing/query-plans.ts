import type pg from 'pg';
import { createPool, type PoolPurpose } from '../../lib/store/pool.ts';

/** One scan of a plan that was really run. */
export interface Scan {
  kind: string;
  table: string;
  index: string | null;
  condition: string | null;
  rowsRemoved: number;
}

export interface RanPlan {
  query: string;
  scans: Scan[];
  /** Pages that the whole statement looked at. */
  buffers: number;
}

interface PlanNode {
  'Node Type': string;
  'Relation Name'?: string;
  'Index Name'?: string;
  'Index Cond'?: string;
  'TID Cond'?: string;
  'Rows Removed by Filter'?: number;
  'Shared Hit Blocks': number;
  'Shared Read Blocks': number;
  Plans?: PlanNode[];
}

/**
 * A pool of one connection with the settings of its purpose, which tells the plan of every statement as the server ran it
 * (auto_explain): the statement that is judged is the statement that is used.
 */
export async function createExplainingPool(
  url: string,
  purpose: PoolPurpose,
): Promise<{ pool: pg.Pool; plans: RanPlan[] }> {
  const plans: RanPlan[] = [];
  const pool = createPool({ url, purpose, max: 1, applicationName: 'test' });
  const client = await pool.connect();
  client.on('notice', ({ message }) => {
    const json = /plan:\n(\{[\s\S]*\})/.exec(message ?? '')?.[1];
    if (json) plans.push(toRanPlan(JSON.parse(json) as { 'Query Text': string; Plan: PlanNode }));
  });
  await client.query(`load 'auto_explain'; set auto_explain.log_format = json; set auto_explain.log_analyze = on;
    set auto_explain.log_timing = off; set auto_explain.log_buffers = on; set client_min_messages = log;
    set auto_explain.log_min_duration = 0`);
  client.release();
  return { pool, plans };
}

function toRanPlan({ 'Query Text': query, Plan: top }: { 'Query Text': string; Plan: PlanNode }): RanPlan {
  const scans: Scan[] = [];
  const walk = (node: PlanNode) => {
    if (node['Node Type'].endsWith('Scan') && node['Relation Name']) {
      scans.push({
        kind: node['Node Type'],
        table: node['Relation Name'],
        index: node['Index Name'] ?? null,
        condition: node['Index Cond'] ?? node['TID Cond'] ?? null,
        rowsRemoved: node['Rows Removed by Filter'] ?? 0,
      });
    }
    for (const child of node.Plans ?? []) walk(child);
  };
  walk(top);
  return { query, scans, buffers: top['Shared Hit Blocks'] + top['Shared Read Blocks'] };
}
